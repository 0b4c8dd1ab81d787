"""The HTTP endpoints that call a model."""
