"""Words of English text, normalised so that inflections and number words compare equal."""

from __future__ import annotations

import regex

_WORD = regex.compile(r"[^\W_]+(?:['’][^\W_]+)?(?:[.,]\d+)*%?")
_SENTENCE_END = regex.compile(r"(?<=[.!?])\s+|\n+")
_SUFFIXES = ("ingly", "edly", "ations", "ation", "ings", "ing", "ies", "ied", "ed", "es", "ly", "s", "e")
_MIN_STEM = 3
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
_AS_DIGITS = {word: str(number) for number, word in enumerate(_NUMBERS)}

FUNCTION_WORDS = frozenset(
    "a an the of to in on at by for with from and or but as is are was were be been being it its this that "
    "these those he she they him his her hers them their theirs there here which who whom whose what when "
    "where why how i you we us our your my me do does did done have has had having will would can could "
    "shall should may might must so than then too very s t also into over under about after before between "
    "through during out up down off again more most some such only own same just because while if".split()
)
NEGATIONS = frozenset(
    "not no never none nobody nothing neither nor without cannot fail fails failed unable lack lacks lacked "
    "lacking deny denies denied refuse refuses refused".split()
)


def words(text: str) -> list[str]:
    """The words of a text, as they are written."""
    return list(_WORD.findall(text))


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text that are not empty."""
    return [part for part in _SENTENCE_END.split(text) if part and part.strip()]


def normal(word: str) -> str:
    """A word's stem in lower case; numbers as digits without separators of thousands."""
    lower = word.lower().replace("’", "'").removesuffix("'s")
    if lower in _AS_DIGITS:
        return _AS_DIGITS[lower]
    if lower[:1].isdigit():
        return lower.replace(",", "").rstrip("%")
    for suffix in _SUFFIXES:
        if lower.endswith(suffix) and len(lower) - len(suffix) >= _MIN_STEM:
            return lower.removesuffix(suffix)
    return lower


def is_content(word: str) -> bool:
    """Whether a word, as it is written, says what a sentence is about."""
    lower = word.lower()
    return lower not in FUNCTION_WORDS and not is_negation(lower)


def is_negation(word: str) -> bool:
    """Whether a word turns the meaning around."""
    lower = word.lower().replace("’", "'")
    return lower in NEGATIONS or lower.endswith("n't")
