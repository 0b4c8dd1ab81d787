"""One stage, one file, one function."""
