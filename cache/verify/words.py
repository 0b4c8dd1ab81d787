"""Text → normalised words, and the markers whose change reverses an answer: numbers, negations, names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

MAX_CHARS = 2_000
"""Characters that are compared; a longer text gets P = 0 (see Verifier)."""

_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*(?:\+\+|#)?|\d+(?:[.,]\d+)*|[%$€£₹+*/=<>^]")
_NAME = re.compile(r"(?<=[^.!?\s]\s)[A-Z][\w+#&.-]*\w|\b[A-Z]{2,}\b")
_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "`": "'", "´": "'"})


def read_sections(path: Path) -> dict[str, list[str]]:
    """Lines of a file by the [section] they stand in."""
    parts = (part.partition("]\n") for part in path.read_text("utf-8").split("[")[1:])
    return {head: body.strip().split("\n") for head, _, body in parts}


def _contractions() -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "cannot": ("can", "not"),
        "ain't": ("is", "not"),
        "shan't": ("shall", "not"),
        "im": ("i", "am"),
        "i'm": ("i", "am"),
        "let's": ("let", "us"),
        "whats": ("what", "is"),
        "whos": ("who", "is"),
    }
    for verb in "do does did is are was were has have had could would should might must".split():
        table[f"{verb}n't"] = table[f"{verb}nt"] = (verb, "not")
    for short, verb in (("can't", "can"), ("won't", "will")):
        table[short] = table[short.replace("'", "")] = (verb, "not")
    for subject in "i you he she it we they who what that there where how when why".split():
        for ending, verb in (("re", "are"), ("ve", "have"), ("ll", "will"), ("d", "would"), ("s", "is")):
            table[f"{subject}'{ending}"] = (subject, verb)
    return table


_REPLACED = _contractions()
_REPLACED |= {
    sign: (word,) for sign, word in zip("%$€£₹", "percent dollar euro pound rupee".split(), strict=True)
}
_REPLACED |= {
    short: (word,)
    for short, word in (
        pair.split("=")
        for pair in "u=you ur=your r=are pls=please plz=please vs=versus v/s=versus jan=january feb=february "
        "mar=march apr=april jun=june jul=july aug=august sep=september sept=september oct=october "
        "nov=november dec=december km=kilometers kilometres=kilometers cm=centimeters kg=kilograms hrs=hours "
        "hr=hour mins=minutes lbs=pounds ft=feet yrs=years gb=gigabytes mb=megabytes tb=terabytes".split()
    )
}

NEGATIONS = frozenset("not no never without none nobody nothing neither nor hardly unless except".split())
_MONTHS = frozenset(
    "january february march april june july august september october november december".split()
)  # not May, which is more often a verb
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_UNITS += " seventeen eighteen nineteen"
_ORDINALS = "third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_VALUES = {word: n for n, word in enumerate(_UNITS.split())}
_VALUES |= {word: n for n, word in enumerate(_ORDINALS.split(), 3)}
_VALUES |= {word: 10 * n for n, word in enumerate(_TENS.split(), 2)}
_VALUES["dozen"] = 12
_MULTIPLIERS = {
    "hundred": 100,
    "thousand": 1_000,
    "k": 1_000,
    "lakh": 10**5,
    "million": 10**6,
    "crore": 10**7,
}
_MULTIPLIERS |= {"m": 10**6, "mn": 10**6, "billion": 10**9, "bn": 10**9, "trillion": 10**12}
_NUMBER_WORDS = _MONTHS | _VALUES.keys() | _MULTIPLIERS.keys()
_ENDINGS = ("ings", "ing", "ied", "ies", "edly", "ed", "es", "ly", "er", "s", "e")
QUANTITY = frozenset("many much old long far tall big high fast deep heavy often large wide".split())
_WH = {"what": "what", "which": "what", "who": "who", "whom": "who", "whose": "who"}
_WH |= {word: word for word in ("when", "where", "why", "how")}
_ASKS_YES_NO = frozenset(
    "is are was were am do does did can could will would should has have had may must".split()
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is compared of one text."""

    words: tuple[str, ...]
    stems: dict[str, str]  # each stem with a word that has it, in order
    bigrams: frozenset[tuple[str, str]]
    numbers: tuple[str, ...]  # sorted; "2k", "2,000" and "two thousand" are all "2000"; months by name
    names: frozenset[str]  # lower case; capitalised words that do not begin a sentence
    num_negations: int
    asks: str  # kind of question: what, who, when, where, why, how, quantity, yes-no or ""


@lru_cache(maxsize=512)
def read(text: str) -> Sentence:
    """Analyse a text; the part after MAX_CHARS is ignored."""
    text = text[:MAX_CHARS].translate(_APOSTROPHES)
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in decomposed if not unicodedata.combining(char))
    words = [word for token in _TOKEN.findall(text.lower()) for word in _normal(token)]
    names = frozenset(name.lower() for name in _NAME.findall(text)) if not text.isupper() else frozenset()
    return Sentence(
        words=tuple(words),
        stems={stem(word): word for word in words},
        bigrams=frozenset(pairwise(words)),
        numbers=tuple(sorted(_numbers(words))),
        names=names,
        num_negations=0 if NEGATIONS.isdisjoint(words) else sum(word in NEGATIONS for word in words),
        asks=_asks(words),
    )


@lru_cache(maxsize=16_384)
def _normal(token: str) -> tuple[str, ...]:
    """The words that a token stands for."""
    replaced = _REPLACED.get(token)
    if replaced is not None:
        return replaced
    if token[0].isdigit():
        return (_digits(token),)
    return (token.removesuffix("'s").replace("'", ""),)


@lru_cache(maxsize=16_384)
def stem(word: str) -> str:
    """Cut common English endings: close enough to match inflections."""
    if len(word) > 4:
        for ending in _ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= 3:
                return word[: -len(ending)]
    return word


def _digits(token: str) -> str:
    """1,000.50 → 1000.5; 007 → 7; what is no number (1.2.3) stays."""
    plain = token.replace(",", "")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".") if plain.count(".") == 1 else plain
    return plain.lstrip("0") or "0"


def _numbers(words: list[str]) -> Iterator[str]:
    """Numbers in digits or words, multiplied out, and the names of months. "One" alone is a pronoun."""
    has_numbers = any(word[0].isdigit() for word in words) or not _NUMBER_WORDS.isdisjoint(words)
    i = 0 if has_numbers else len(words)
    while i < len(words):
        word = words[i]
        i += 1
        if word[0].isdigit():
            value = word
        elif word in _VALUES:
            value = str(_VALUES[word])
            if _VALUES[word] >= 20 and i < len(words) and 0 < _VALUES.get(words[i], 10) < 10:
                value = str(_VALUES[word] + _VALUES[words[i]])
                i += 1
        elif word in _MONTHS:
            yield word
            continue
        elif word in _MULTIPLIERS and len(word) > 2 and (i < 2 or words[i - 2] in ("a", "of", "per")):
            value = "1"
            i -= 1
        else:
            continue
        is_scaled = False
        while i < len(words) and words[i] in _MULTIPLIERS and value.replace(".", "", 1).isdigit():
            value = f"{float(value) * _MULTIPLIERS[words[i]]:.12g}"
            i += 1
            is_scaled = True
        if word != "one" or is_scaled:
            yield value


def _asks(words: list[str]) -> str:
    for i, word in enumerate(words[:12]):
        if word == "how" and i + 1 < len(words) and words[i + 1] in QUANTITY:
            return "quantity"
        if word in _WH:
            return _WH[word]
        if i == 0 and word in _ASKS_YES_NO:
            return "yes-no"
    return ""
