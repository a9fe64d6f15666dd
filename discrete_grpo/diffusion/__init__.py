"""Noise schedules and kernels: how classes are noised and how a prediction becomes a reverse step."""
