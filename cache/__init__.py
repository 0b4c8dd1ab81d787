"""Answers that we already have: found by identity, then by meaning, and served only when verified.

Plain Python and NumPy: knows neither HTTP nor the gateway. Vectors come from its caller.
"""
