"""Surface features of a prompt: lengths, numbers, code, mathematics, tables, constraints, choices."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from operator import attrgetter

MAX_CHARS = 8_000
"""Characters that are read of a text: its first and last halves of this."""

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_OPERATOR = re.compile(r"[-+*/=^<>×÷%]|\b(?:plus|minus|times|divided|modulo|squared)\b", re.I)
_CODE = re.compile(
    r"```|\bdef \w+\(|\bclass \w+|^(?>.*?\bfunction\b).*\(|^(?>.*?\breturn\b).*;|#include|\bimport \w+"
    r"|^(?>.*?\bSELECT\b).+\bFROM\b"
    r"|</\w+>|\bassert \w+|=>|\bconsole\.|\bprint\(",
    re.M,
)
_MATHS = re.compile(
    r"\\(?:frac|sqrt|sum|int|boxed)|\$[^$\n]+\$|\b(?:equation|integral|derivative|polynomial|theorem|prove|"
    r"probability|triangle|hypotenuse|factorial|remainder|modulo|logarithm)s?\b|\d\s*[-+*/^=×÷]\s*\d",
    re.I,
)
_CHOICE = re.compile(r"^[^\S\n]*+(?:[A-Ea-e]|\d{1,2})[.):]\s++\S", re.M)
_TABLE_ROW = re.compile(r"^[^\S\n]*+\|.+\|[^\S\n]*+$|^(?>[^,\n]+\t)[^\t\n]++(?:\t[^\t\n]++)*+$", re.M)
_CONSTRAINT = re.compile(
    r"\b(?:must|exactly|at least|at most|no more than|only|without|do not|don't|never|always|each|every|"
    r"ensure|avoid|include|between|limit(?:ed)? to)\b",
    re.I,
)
_STEPS = re.compile(
    r"\b(?:step by step|explain|why|prove|derive|how many|how much|plan|compare|analy[sz]e|calculate|compute|"
    r"therefore|if|then|after|before|altogether|total|left|remain\w*)\b",
    re.I,
)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")


@dataclass(frozen=True, slots=True)
class Surface:
    """Counts are as they are in the text; `vector` compresses them."""

    num_chars: int
    num_words: int
    num_sentences: int
    num_lines: int
    num_questions: int
    num_commas: int
    num_quotes: int
    num_numbers: int
    max_digits: int  # of the longest number
    num_operators: int
    num_choices: int  # lines as "A. …" or "1) …"
    num_constraints: int
    num_steps: int  # words that ask for several steps
    num_table_rows: int
    has_code: bool
    has_maths: bool
    mean_word_chars: float
    upper_share: float  # of letters
    other_share: float  # of characters beyond ASCII

    def vector(self) -> list[float]:
        """One number per field: counts as log(1 + n), shares as they are."""
        return [
            math.log1p(value) if isinstance(value, int) and not isinstance(value, bool) else float(value)
            for value in _VALUES(self)
        ]


NAMES: tuple[str, ...] = tuple(field.name for field in fields(Surface))
_VALUES = attrgetter(*NAMES)


def read_surface(text: str) -> Surface:
    """Read a text. Of one that is longer than MAX_CHARS the middle is left out."""
    num_chars = len(text)
    if num_chars > MAX_CHARS:
        text = f"{text[: MAX_CHARS // 2]}\n{text[-MAX_CHARS // 2 :]}"
    words = _WORD.findall(text)
    numbers = _NUMBER.findall(text)
    num_letters = sum(map(len, words))
    return Surface(
        num_chars=num_chars,
        num_words=len(words),
        num_sentences=len(_SENTENCE_END.findall(text)),
        num_lines=text.count("\n"),
        num_questions=text.count("?"),
        num_commas=text.count(","),
        num_quotes=text.count('"') + text.count("“"),
        num_numbers=len(numbers),
        max_digits=max((sum(map(str.isdigit, number)) for number in numbers), default=0),
        num_operators=len(_OPERATOR.findall(text)),
        num_choices=len(_CHOICE.findall(text)),
        num_constraints=len(_CONSTRAINT.findall(text)),
        num_steps=len(_STEPS.findall(text)),
        num_table_rows=len(_TABLE_ROW.findall(text)),
        has_code=bool(_CODE.search(text)),
        has_maths=bool(_MATHS.search(text)),
        mean_word_chars=num_letters / max(1, len(words)) / 10,
        upper_share=sum(map(str.isupper, text)) / max(1, num_letters),
        other_share=sum(not char.isascii() for char in text) / max(1, len(text)),
    )
