"""Parses tool calls out of a model's streamed text, in the syntax of each model family."""
