"""Whole jobs, one module per domain: training, searching, pretraining, sampling and evaluating."""
