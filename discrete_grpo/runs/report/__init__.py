"""The HTML report of a run: its page, charts and drawings of samples."""
