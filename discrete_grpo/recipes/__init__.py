"""Whole jobs: GRPO, optimisation, search, sampling, evaluation, and the parts they share; pretraining in a folder of its own."""
