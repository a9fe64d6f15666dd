"""Benchmarks of reward optimisation: methods x tasks x seeds, each within a hard budget of oracle calls."""
