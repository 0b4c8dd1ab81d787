"""Labelled texts to learn names from, cut into sentences of tagged words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from backend.classifiers.training_files import read_rows as read_lines
from guardrails.checks.personal_data.names import CONTEXT_CHARS, sentences
from guardrails.checks.personal_data.patterns import KINDS, PatternFinder
from guardrails.checks.personal_data.words import Word, is_opaque, words_of

FILES = ("pii.train.jsonl.gz", "pii.dev.jsonl.gz")
TAG_OF = {"PERSON": 1, "LOCATION": 2, "ORGANIZATION": 3, "ADDRESS": 4, "ZIP_CODE": 4}
"""By the types of the data; words of other types have no tag."""
_PATTERNS = PatternFinder(KINDS)


class Row(NamedTuple):
    """A text with its entities: start, end, type."""

    text: str
    spans: list[tuple[int, int, str]]
    source: str


class Sentence(NamedTuple):
    """The words, with those of the line before; a tag of each, -1 for the line before."""

    words: list[Word]
    tags: list[int]


def read_rows(folder: Path, *, only_train: bool = False) -> Iterator[Row]:
    """The public data. Raises RowsError."""
    for name in FILES[: 1 if only_train else None]:
        for row in read_lines(folder / name):
            spans = [(span["start"], span["end"], span["type"]) for span in row["spans"]]
            yield Row(row["text"], spans, row["source"])


def sentences_of(rows: Iterable[Row]) -> Iterator[Sentence]:
    """Sentences as the tagger sees them when it is used."""
    for text, spans, _ in rows:
        fixed = list(_PATTERNS.spans(text))
        for start, end, _ in sentences(text, 0, fixed):
            before = words_of(text, max(0, start - CONTEXT_CHARS), start)
            words = words_of(text, start, end, [span for span in fixed if start <= span.start < end])
            tags = [-1] * len(before) + [_tag(word, spans) for word in words]
            if words:
                yield Sentence([*before, *words], tags)


def _tag(word: Word, spans: list[tuple[int, int, str]]) -> int:
    if is_opaque(word):
        return 0
    return max(
        (TAG_OF.get(kind, 0) for start, end, kind in spans if start <= word.start and word.end <= end),
        default=0,
    )
