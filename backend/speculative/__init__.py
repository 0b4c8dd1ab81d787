"""Speculative decoding: drafters guess tokens, the model verifies them, the output stays what it was."""
