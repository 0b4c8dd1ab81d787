"""Structured output (constrained decoding): the tokens that a JSON schema, regex or grammar allows next."""
