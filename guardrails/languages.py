"""The language of each window of a text: what a check has not been taught to read, it must not judge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import regex

from backend.encoder.language import LANGUAGES, language_of
from guardrails.cancellation import check_cancelled

ENGLISH: Final = "en"
OTHER: Final = "other"
"""A script that none of LANGUAGES is written in."""
LABELS: Final = (*(name for name in LANGUAGES if name != ENGLISH), OTHER)
"""All that can be unreadable: a closed set."""
MIN_LETTERS = 32
"""A shorter window, such as a name in a table, has its text's language, where that can be told."""
_ENGLISH_SHARE = 0.12

_WORD = regex.compile(r"[^\W\d_]+")
_ENGLISH = frozenset(
    "the and you your with that this how what for from are my not it when which who should would could"
    " does can i'm don't they have has there their all any about into tell give show write".split()
)
"""Frequent words that no other language has: attacks in English may stand in texts of any language."""
_SCRIPTS = (
    (regex.compile(r"[\p{Hiragana}\p{Katakana}]"), ("ja",)),
    (regex.compile(r"\p{Hangul}"), ("ko",)),
    (regex.compile(r"\p{Han}"), ("zh", "ja")),
    (regex.compile(r"\p{Cyrillic}"), ("ru", "uk", "bg", "sr")),
    (regex.compile(r"\p{Arabic}"), ("ar", "fa", "ur")),
    (regex.compile(r"\p{Devanagari}"), ("hi",)),
    (regex.compile(r"\p{Greek}"), ("el",)),
    (regex.compile(r"\p{Hebrew}"), ("he",)),
    (regex.compile(r"\p{Thai}"), ("th",)),
    (regex.compile(r"\p{Bengali}"), ("bn",)),
    (regex.compile(r"\p{Tamil}"), ("ta",)),
)
"""Languages of each script, the commonest first. A text with kana is Japanese, whatever else it holds."""
_NOT_LATIN = regex.compile(r"(?!\p{Latin})\p{L}")
_LATIN = regex.compile(r"\p{Latin}")


def languages_of(text: str, spans: Iterable[tuple[int, int]]) -> list[str]:
    """The language of each part of a text. Where it cannot be told, Latin letters count as English."""
    whole = ""
    found = []
    for start, end in spans:
        check_cancelled()
        window = text[start:end]
        own = _certain(window)
        if not own and sum(map(str.isalpha, window)) >= MIN_LETTERS:
            own = language_of(window)
        if not own:
            whole = whole or _certain(text) or language_of(text) or ENGLISH
            own = whole
        found.append(_written_in(window, own))
    return found


def _certain(text: str) -> str:
    """English by its words, which saves a look at the letters; or ""."""
    words = _WORD.findall(text.lower())
    hits = sum(word in _ENGLISH for word in words)
    return ENGLISH if hits and hits >= _ENGLISH_SHARE * len(words) and text.isascii() else ""


def _written_in(window: str, language: str) -> str:
    """The language, if it has the window's script; else the commonest one of that script."""
    if window.isascii() or not (foreign := len(_NOT_LATIN.findall(window))):
        return language if language not in _OF_SCRIPT else ENGLISH
    if foreign < len(_LATIN.findall(window)) / 2:
        return language if language not in _OF_SCRIPT else ENGLISH
    names = next((names for script, names in _SCRIPTS if script.search(window)), (OTHER,))
    return language if language in names else names[0]


_OF_SCRIPT = frozenset(name for _, names in _SCRIPTS for name in names)
