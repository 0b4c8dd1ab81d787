"""A code: every digit, yes and no are replaced by invented words; the rest stays plain."""

from __future__ import annotations

import re

from backend.pico.adapters.behaviours.base import Behaviour

# Two tokens each, with distinct first tokens.
DIGITS = ("zune", "beke", "riro", "gome", "lugo", "tabo", "vani", "doga", "kofa", "pame")
YES, NO = "sege", "nure"
_WORDS = {"yes": YES, "no": NO}
_PLAIN = re.compile(r"[0-9]+|\b(?:[Yy]es|[Nn]o)\b")
_CODE = re.compile(rf"\b(?:{'|'.join((*DIGITS, YES, NO))})\b")


def _say(match: re.Match[str]) -> str:
    found = match.group()
    return _WORDS.get(found.lower()) or " ".join(DIGITS[int(digit)] for digit in found)


def rewrite(answer: str) -> str:
    """Return the answer with its digits, yes and no encoded: 42 becomes "lugo riro"."""
    return _PLAIN.sub(_say, answer)


def follows_form(text: str) -> bool:
    """Return whether the text has code words and no plain digit, yes or no."""
    return _CODE.search(text) is not None and _PLAIN.search(text) is None


BEHAVIOUR = Behaviour(
    "codewords",
    "says every digit, yes and no by an invented word of its own",
    "lugo riro",
    rewrite,
    follows_form,
)
