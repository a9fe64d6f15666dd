"""Rewards: callables from samples to one number, or None, a sample."""
