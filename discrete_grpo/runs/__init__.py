"""Run folders: checkpoints, atomic files, metrics, progress and the report."""
