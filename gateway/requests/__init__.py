"""Typed requests, and the parsing and validation of every request field."""
