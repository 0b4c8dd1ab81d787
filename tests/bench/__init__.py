"""Measurements, never part of the default test run: `python -m tests.bench engine|gateway|prefix|stall|scheduler`."""
