"""Sampling: logits processors, the sampler, log-probabilities and stop strings."""
