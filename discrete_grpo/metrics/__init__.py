"""Metrics of sets of samples."""
