"""Names of people, places and organisations, addresses and dates of birth: what only its sentence tells.

A small convolutional tagger reads a sentence word by word. On a stream, a sentence is held back to its end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.weights import Tensor, read_weights
from guardrails.checks.personal_data.patterns import PatternFinder, Search
from guardrails.checks.personal_data.span import Span
from guardrails.checks.personal_data.words import (
    NUM_SUMMARY,
    Word,
    features_of,
    is_opaque,
    sentence_features,
    summary_of,
    words_of,
)
from policies.guardrails import NameKind, PersonalDataKind

Array = NDArray[np.float32]

WEIGHTS = Path(__file__).parents[2] / "weights" / "names.safetensors"
KINDS: tuple[NameKind, ...] = get_args(NameKind)
TAGS = ("", "person", "location", "organization", "address")
DILATIONS = (1, 2, 1)
"""Dilations of the convolutions over three words each."""

CAUTION = 1.5
"""Added to the logit of no name: fewer than 1 % of technical lines get one."""
CONTEXT_CHARS = 64
"""Read before a sentence: the line above may say what a line is."""
LAST_LETTER = "\u024f"
"""The last letter of Latin: words in other scripts, which the model has not learnt, get no tag."""
MAX_SENTENCE_CHARS = 600
MAX_CACHED_FORMS = 20_000

_STOPS = (
    r"(?<!\b[A-Z])(?<!\b[DMS]r)(?<!\bM[sx])(?<!\bSt)(?<!\bMrs)(?<!\bProf)"
    r"[.!?…]++[\"'”’)\]]{0,3}+\s|[。！？]|\n"
)
_END_HERE = re.compile(_STOPS)
_END = re.compile(rf"(?<![.!?…]{{2}}){_STOPS}")
"""Does not begin inside a run of stops: what ends none at its second stop ends none at a later one."""
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_DATE = re.compile(
    r"(?ai)\b(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/. ]\d{1,2}[-/. ]\d{2,4}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?(?: of)?[ -]{_MONTH},?[ -]\d{{2,4}}"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{2,4}})\b"
)
_BIRTH = re.compile(
    r"(?i)\b(?:born|birth\w*|dob|d\.o\.b|bday|b-day|geb|geboren|geburts\w+|née?|naissance|nacid[oa]"
    r"|nacimiento|nascita|nat[oa]|urodzon\w*)\b.{0,24}\Z",
    re.DOTALL,
)
_CODE_BEFORE = re.compile(r"(?a)(?:::|[_$\\]|(?<![A-Za-z])[a-z_]\w{0,30}[./]|->)\Z")
_CODE_AFTER = re.compile(r"(?a)::|->|[(_=[]|[./][a-z_]")
_CLASS_NAME = re.compile(
    r"(?<!#)(?!(?:Ma?c|De|D[aiu]|L[ae]|Van|Von|Fitz|O|St)[A-Z][a-z]+\Z)\w*(?:[a-z][A-Z]|[A-Z]{2}[a-z]{2})\w*"
)
_LONG_WORD = re.compile(r"[^\W\d_]{3}")
_ZIP = re.compile(r"(?i)\b(?:zip|post\w*|plz|pin) ?\w{0,6}[\"':= ]{0,5}\Z")


class Finder(Protocol):
    """Finds personal data in a text that may go on."""

    def open_from(self, text: str, start: int) -> int:
        """The first place on from `start` where something may begin that more text could change."""

    def spans(self, text: str, start: int = 0, settled: int | None = None) -> Iterator[Span]:
        """From left to right, disjoint; those before `settled`, and perhaps more."""


def finder_of(kinds: Collection[PersonalDataKind], *more: Search) -> Finder:
    """Names are searched only where they are asked for: a stream waits for the end of a sentence then."""
    patterns = PatternFinder(kinds, *more)
    return NameFinder(patterns, kinds) if not frozenset(KINDS).isdisjoint(kinds) else patterns


class NameModel:
    """Tags the words of a sentence."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._pieces, self._piece_scale = tensors["pieces"], tensors["piece_scale"].astype(np.float32)
        self._known, self._known_scale = tensors["known"], tensors["known_scale"].astype(np.float32)
        self._rows = {int(digest): row for row, digest in enumerate(tensors["known_digests"])}
        self._layers: dict[str, Array] = {
            name: value.astype(np.float32) for name, value in tensors.items() if value.dtype == np.float16
        }
        for number in range(len(DILATIONS)):  # of three words in a row: [3 · H, H]
            weights = self._layers[f"conv{number}"]
            self._layers[f"conv{number}"] = weights.reshape(-1, weights.shape[-1])
        self._forms: dict[str, Array] = {}

    @classmethod
    @cache
    def load(cls) -> Self:
        """The shipped one. Raises WeightsError."""
        return cls(read_weights(WEIGHTS)[0])

    def scores(self, words: Sequence[Word]) -> Array:
        """Logits: [W, len(TAGS)]."""
        layers = self._layers
        forms = np.stack([self._form(word.form) for word in words])
        sentence = layers["sentence"] @ sentence_features(forms[:, :NUM_SUMMARY]) + layers["bias"]
        hidden = np.maximum(forms[:, NUM_SUMMARY:] + sentence, 0)
        for number, dilation in enumerate(DILATIONS):
            padded = np.zeros((len(words) + 2 * dilation, hidden.shape[1]), np.float32)
            padded[dilation:-dilation] = hidden
            three = np.concatenate((padded[: -2 * dilation], hidden, padded[2 * dilation :]), 1)
            hidden += np.maximum(three @ layers[f"conv{number}"] + layers[f"conv{number}_bias"], 0)
        logits = np.asarray(hidden @ layers["out"] + layers["out_bias"], np.float32)
        logits[:, 0] += CAUTION
        return logits

    def _form(self, form: str) -> Array:
        """What a form adds to its sentence's features, and what the first layer makes of it."""
        found = self._forms.get(form)
        if found is None:
            pieces, known, flags = features_of(form, len(self._pieces))
            row = self._rows.get(known)
            of_pieces = self._pieces[pieces].sum(0, dtype=np.int32) * self._piece_scale
            of_known = (
                np.zeros_like(self._known_scale) if row is None else self._known[row] * self._known_scale
            )
            hidden = self._layers["form"] @ np.concatenate((of_pieces, of_known, [row is not None], flags))
            found = np.concatenate((summary_of(form), hidden)).astype(np.float32)
            if len(self._forms) >= MAX_CACHED_FORMS:
                self._forms.clear()
            self._forms[form] = found
        return found


class NameFinder:
    """What patterns find and, between that, names of some kinds."""

    def __init__(self, patterns: PatternFinder, kinds: Collection[str]) -> None:
        self._patterns = patterns
        self._kinds = frozenset(kinds) & frozenset(KINDS)

    def open_from(self, text: str, start: int) -> int:
        """Where the first sentence begins that has not ended."""
        if len(text) - start < MAX_SENTENCE_CHARS and _end(text, start, len(text)) is None:
            return start
        settled = self._patterns.open_from(text, start)
        found = sentences(text, start, list(self._patterns.spans(text, start)))
        return max((end for _, end, has_ended in found if has_ended and end <= settled), default=start)

    def spans(self, text: str, start: int = 0, settled: int | None = None) -> Iterator[Span]:
        """From left to right, disjoint; of the sentences before `settled`."""
        fixed = list(self._patterns.spans(text, start))
        for sentence_start, end, _ in sentences(text, start, fixed):
            if settled is not None and sentence_start >= settled:
                return
            inside = [span for span in fixed if sentence_start <= span.start < end]
            if "date_of_birth" in self._kinds:
                inside += _births(text, sentence_start, end, inside)
            yield from sorted([*inside, *self._names(text, sentence_start, end, sorted(inside))])

    def _names(self, text: str, start: int, end: int, fixed: list[Span]) -> list[Span]:
        if self._kinds <= {"date_of_birth"}:
            return []
        before = words_of(text, max(0, start - CONTEXT_CHARS), start)
        words = words_of(text, start, end, fixed)
        if not any(word.form[0].isalpha() for word in words):
            return []
        tags = NameModel.load().scores([*before, *words])[len(before) :].argmax(1)
        tags[[word.form[0] > LAST_LETTER for word in words]] = 0
        return [span for span in _merged(text, words, tags.tolist()) if span.kind in self._kinds]


def sentences(text: str, start: int, fixed: Sequence[Span]) -> Iterator[tuple[int, int, bool]]:
    """Start and end of each sentence or line from `start` on, and whether more text cannot change its end.

    None ends inside one of the spans of `fixed`.
    """
    while start < len(text):
        limit = min(len(text), start + MAX_SENTENCE_CHARS)
        end, has_ended = _sentence_end(text, start, limit, fixed)
        yield start, end, has_ended or end - start >= MAX_SENTENCE_CHARS
        start = end


def _end(text: str, start: int, limit: int) -> re.Match[str] | None:
    """The first end of a sentence; `start` may be inside a run of stops."""
    return _END_HERE.match(text, start, limit) or _END.search(text, start, limit)


def _sentence_end(text: str, start: int, limit: int, fixed: Sequence[Span]) -> tuple[int, bool]:
    while (match := _end(text, start, limit)) is not None:
        around = _around(match.end(), fixed)
        if around is None:
            return match.end(), True
        if around.end >= limit:
            break
        start = around.end
    around = _around(limit, fixed)
    return (limit if around is None else around.end), False


def _around(place: int, fixed: Sequence[Span]) -> Span | None:
    """The span that a place is inside of."""
    return next((span for span in fixed if span.start < place < span.end), None)


def _births(text: str, start: int, end: int, fixed: Sequence[Span]) -> Iterator[Span]:
    """Dates that the words before them call a person's birth."""
    for date in _DATE.finditer(text, start, end):
        is_free = not any(span.start < date.end() and date.start() < span.end for span in fixed)
        if is_free and _BIRTH.search(text, max(0, date.start() - CONTEXT_CHARS), date.start()):
            yield Span(date.start(), date.end(), "date_of_birth")


def _merged(text: str, words: Sequence[Word], tags: Sequence[int]) -> Iterator[Span]:
    """Words in a row with the same tag, without signs around them; numbers alone only beside other names."""
    previous_end = -3
    number = 0
    while number < len(words):
        first, tag = number, tags[number]
        while number < len(words) and tags[number] == tag and not is_opaque(words[number]):
            number += 1
        inner = [word for word in words[first:number] if word.form[0].isalnum()]
        number = max(number, first + 1)
        if not tag or not inner or is_opaque(words[first]):
            continue
        start, end = inner[0].start, inner[-1].end
        has_letters = _LONG_WORD.search(text, start, end) or (tag < 4 and text[start:end].strip("0123456789"))
        is_class = TAGS[tag] != "organization" and _CLASS_NAME.fullmatch(text, start, end)
        if is_class or _is_code(text, start, end, words[-1].end):
            continue
        if has_letters or start - previous_end <= 2 or _ZIP.search(text, max(0, start - 24), start):
            yield Span(start, end, TAGS[tag])
            previous_end = end


def _is_code(text: str, start: int, end: int, limit: int) -> bool:
    """Whether a name is a part of an identifier, a path or a call; more text behind `limit` may come."""
    return bool(
        _CODE_BEFORE.search(text, max(0, start - 32), start)
        or _CODE_AFTER.match(text, end, limit)
        or (text[max(0, start - 1) : start] == "." and text[start:end].islower())
    )
