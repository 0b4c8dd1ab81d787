"""Weights in 8 and 4 bits: one record for all formats, their readers, and rounding of 16-bit weights."""
