"""Measurements, never part of the default test run: `python -m tests.bench NAME`."""
