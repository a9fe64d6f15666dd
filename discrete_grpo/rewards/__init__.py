"""Rewards: callables that take samples and return one number, or None, per sample."""
