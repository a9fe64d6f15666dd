"""The GRPO trainer: configuration, sampling, mini-batches, updates, and the state that a run resumes from."""
