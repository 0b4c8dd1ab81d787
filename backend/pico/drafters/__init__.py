"""Drafters for speculative decoding of pico-large: a draft model and three kinds of heads.

`python -m backend.pico.drafters.train` trains one, `python -m backend.pico.drafters.acceptance` measures all.
"""
