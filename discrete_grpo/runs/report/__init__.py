"""What a run leaves behind: metrics and sample tables, progress on the terminal, and one HTML page."""
