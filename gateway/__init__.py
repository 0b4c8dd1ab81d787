"""The HTTP process: the only package that knows the others."""
