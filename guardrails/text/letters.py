"""Letters that stand for others: look-alikes, styled letters, digits and signs."""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import chain

import regex

_LOOKALIKES = (
    ("АВЕЅΖНІЈКМΝОРСТХҮԌԚԜΑΒΕΗΙΚΜΟΡΤΥΧ", "ABESZHIJKMNOPCTXYGQWABEHIKMOPTYX"),
    ("аеорсухіјѕһԁԛԝѵгκαοεινρτυχωηγкмтвнзьԍӏɑɡɩʏ", "aeopcyxijshdqwvrkaoeivptuxwnykmtbhebgiagiy"),
    ("օաոսհցգզքյէ", "owhuhggqpje"),
    ("ᎪᏴᏟᎠᎬᏀᎻᏆᎫᏦᏞᎷΝᏢᎡᏚᎢᏙᎳᏃ", "ABCDEGHIJKLMNPRSTVWZ"),
)  # fmt: skip
LOOKALIKES = str.maketrans(dict(chain.from_iterable(zip(*each, strict=True) for each in _LOOKALIKES)))
"""Cyrillic, Greek, Armenian and Cherokee letters that look Latin; read so among Latin letters only."""

_STYLED_BLOCKS = (
    range(0x180, 0x250), range(0x250, 0x2B0), range(0x1D00, 0x1DC0), range(0x2C60, 0x2C80),
    range(0xA720, 0xA800), range(0x1F110, 0x1F200),
)  # fmt: skip
_STYLED_NAME = regex.compile(
    r"(?:LATIN (?:SMALL |CAPITAL )?(?:LETTER )?(?:SMALL CAPITAL |SMALL |CAPITAL |TURNED |REVERSED |SCRIPT )*"
    r"|MODIFIER LETTER (?:SMALL |CAPITAL )|(?:NEGATIVE )?(?:CIRCLED |SQUARED )LATIN CAPITAL LETTER "
    r"|REGIONAL INDICATOR SYMBOL LETTER )([A-Z])(?: WITH .*)?"
)
_OTHER = {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ħ": "h", "ı": "i", "ŧ": "t", "ß": "ss"}

_LEET = str.maketrans("013456789@$!|+€", "oieasgtbgasiite")
_LEET_L = str.maketrans("1!|", "lll")


@cache
def styled_letters() -> dict[int, str]:
    """Small capitals, squared, circled, turned and stroked letters, which NFKC leaves alone."""
    found = {ord(char): plain for char, plain in _OTHER.items()}
    for code in chain.from_iterable(_STYLED_BLOCKS):
        match = _STYLED_NAME.fullmatch(unicodedata.name(chr(code), ""))
        if match is not None:
            found[code] = match[1].lower()
    return found


def unleet(token: str) -> tuple[str, str]:
    """Readings of a token whose digits and signs stand for letters: 1 and ! as i, and as l."""
    lower = token.lower()
    return lower.translate(_LEET), lower.translate(_LEET_L).translate(_LEET)
