"""Searches streams for patterns: any cut of the text gives the same result."""
