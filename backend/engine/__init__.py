"""The step: plan, prepare, forward, sample, commit."""
