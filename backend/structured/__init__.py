"""Structured output: which tokens a JSON schema, a regular expression or a grammar allows next."""
