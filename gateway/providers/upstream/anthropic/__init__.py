"""Anthropic's Messages API as an upstream: chats become messages, and their answers deltas."""
