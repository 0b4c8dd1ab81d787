"""Anthropic's Messages API in front of the pipeline: translation only."""
