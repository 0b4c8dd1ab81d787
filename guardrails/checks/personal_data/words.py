"""Words of a text and what a model of names sees of each: hashed pieces, case, lists of names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(  # in JSON, line ends are escaped
    r"\\[nrt]|[^\W\d_]+(?:['’][^\W\d_]{2,})?(?![^\W_])|[^\W_]+|[^\w ]|_+"
)
_RUN = re.compile(r"(.)\1+")
_LONG_RUN = re.compile(r"(.)\1{2,}")
NUM_FLAGS = 12
NUM_SUMMARY = 5
NUM_SENTENCE_FEATURES = 4


class Word(NamedTuple):
    """A word, a number or a sign."""

    start: int
    end: int
    form: str  # as written; of personal data with a fixed shape: its kind in capitals, in brackets


def words_of(text: str, start: int, end: int, opaque: Iterable[tuple[int, int, str]] = ()) -> list[Word]:
    """The words between two places; each span of `opaque` is one."""
    found: list[Word] = []
    for span_start, span_end, kind in opaque:
        found += _plain(text, start, span_start)
        found.append(Word(span_start, span_end, f"[{kind.upper()}]"))
        start = span_end
    return found + _plain(text, start, end)


def _plain(text: str, start: int, end: int) -> list[Word]:
    return [
        Word(match.start(), match.end(), "\n" if len(match[0]) == 2 and match[0][0] == "\\" else match[0])
        for match in _WORD.finditer(text, start, end)
    ]


def is_opaque(word: Word) -> bool:
    """Whether it is personal data of a fixed shape."""
    return word.form[0] == "[" and len(word.form) > 1


def features_of(form: str, num_rows: int) -> tuple[list[int], int, list[float]]:
    """Rows of the table of pieces, the digest of the word as a dictionary has it, case and kind."""
    return [crc32(piece.encode()) % num_rows for piece in _pieces(form)], digest_of(form), _flags(form)


def digest_of(form: str) -> int:
    """The digest of a word without case and accents."""
    decomposed = unicodedata.normalize("NFD", form.lower())
    return crc32("".join(char for char in decomposed if not unicodedata.combining(char)).encode())


def summary_of(form: str) -> list[float]:
    """What of a form counts for its sentence: [NUM_SUMMARY]."""
    is_alphabetic = form[0].isalpha()
    has_digit = any(map(str.isdigit, form))
    flags = (
        is_alphabetic and not form.islower(),
        is_alphabetic,
        is_alphabetic and form[0].isupper(),
        has_digit,
    )
    return [*map(float, flags), float(not form[0].isalnum())]


def sentence_features(summaries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Whether no word of [W, NUM_SUMMARY] has capitals; shares of capitalised words, of digits, of signs."""
    not_lower, alphabetic, capitalised, with_digits, signs = summaries.sum(0).tolist()
    num_words = max(1, len(summaries))
    return np.array(
        [not_lower == 0, capitalised / max(1, alphabetic), with_digits / num_words, signs / num_words],
        np.float32,
    )


def _shape(form: str) -> str:
    """`Xx` of a capitalised word, `X`, `x`, `xX`; of digits, their number."""
    if form.isdigit():
        return f"9{min(len(form), 6)}"
    letters = [
        "X" if char.isupper() else "x" if char.isalpha() else "9" if char.isdigit() else char for char in form
    ]
    return _RUN.sub(r"\1", "".join(letters))


def _pieces(form: str) -> list[str]:
    """The hashed features of a form."""
    shape = f"s{_shape(form)}"
    if not form[0].isalpha() or any(char.isdigit() for char in form):
        return [shape, f"f{form[:12]}", f"l{len(form)}"]
    lower = _LONG_RUN.sub(r"\1\1", form.lower()[:24])
    marked = f"<{lower}>"
    grams = [marked[at : at + size] for size in (3, 4) for at in range(len(marked) - size + 1)]
    return [
        shape,
        f"w{marked}",
        f"a{marked[-3:]}",
        f"b{marked[-4:]}",
        f"c{marked[-5:]}",
        f"p{marked[:4]}",
        *grams,
    ]


def _flags(form: str) -> list[float]:
    """Case and kind of a form: [NUM_FLAGS]."""
    return [
        float(flag)
        for flag in (
            form.isupper() and len(form) > 1,
            form[:1].isupper() and form[1:].islower(),
            len(form) == 1 and form.isupper(),
            form.islower(),
            form.isdigit(),
            form == "\n",
            form[0] == "[" and len(form) > 1,
            not form[0].isalnum(),
            any(char.isupper() for char in form[1:]) and any(char.islower() for char in form),
            not form.isascii(),
            len(form) <= 2,
            form[0].isalpha(),
        )
    ]
