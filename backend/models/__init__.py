"""Decoder models: `families/` describes each family, `decoder.py` computes all of them.

Nothing is imported here: `checkpoint_config.py` is for processes without torch as well.
"""
