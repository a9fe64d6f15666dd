"""Noise processes and reverse steps: how classes are noised, and how a prediction becomes a reverse step."""
