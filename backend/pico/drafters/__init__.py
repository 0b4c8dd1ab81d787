"""Drafters for speculative decoding of the family's large model: a small model of its own, and three heads.

`python -m backend.pico.drafters.train` trains one, `python -m backend.pico.drafters.acceptance` measures all.
"""
