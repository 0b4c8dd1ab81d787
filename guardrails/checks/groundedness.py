"""Whether given documents support a sentence of an answer: words that are covered, numbers, names, negations.

Purely lexical, so that it costs microseconds per sentence: the share of covered words is the base, and what
contradicts the documents (a number or name that they lack, a word in the place of another, a negation too
many) lowers it. No coefficient can work against the meaning of its feature, so that foreign data cannot turn
one around. Training: `python -m guardrails.train.groundedness`; figures in `guardrails/REPORT.md`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from guardrails.checks.words import is_content, is_negation, normal, sentences, words

WEIGHTS = Path(__file__).parent.parent / "weights" / "groundedness.json"

MAX_CONTEXT_CHARS = 200_000
MIN_CONTENT_WORDS = 3
"""A sentence with fewer says too little to be checked."""

MAX_PLACES = 64
"""Kept places of one word: those of a word in every sentence tell nothing, and cost time for each."""

NEAR = 4
"""How far from each other two words may be that have another one between them."""

NEGATED_WITHIN = 3
NUM_BEST = 3

SUPPORTING = ("covered", "covered_by_one", "covered_by_three")
CONTRADICTING = ("missing_number", "missing_names", "replaced_numbers", "replaced_names", "negation")
FEATURES = SUPPORTING + CONTRADICTING

_OPENERS = frozenset(
    "hello hi hey thanks thank sorry sure certainly please welcome great okay ok yes".split()
)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """Words of a sentence: normalised, and which of them count as what."""

    words: tuple[str, ...]
    content: tuple[bool, ...]
    numbers: tuple[bool, ...]
    names: tuple[bool, ...]  # capitalised inside a sentence
    negated: tuple[bool, ...]

    @classmethod
    def read(cls, text: str) -> _Sentence:
        raw = words(text)
        content = tuple(is_content(word) for word in raw)
        names = tuple(i > 0 and word[0].isupper() and content[i] for i, word in enumerate(raw))
        normals = tuple(normal(word) for word in raw)
        return cls(normals, content, tuple(word[0].isdigit() for word in normals), names, _negated(raw))

    def content_words(self) -> list[str]:
        return [word for word, counts in zip(self.words, self.content, strict=True) if counts]


def _negated(raw: Sequence[str]) -> tuple[bool, ...]:
    """Whether a negation comes within a few words before each word."""
    found, last = [], -NEGATED_WITHIN - 1
    for i, word in enumerate(raw):
        if is_negation(word):
            last = i
        found.append(0 < i - last <= NEGATED_WITHIN)
    return tuple(found)


class Documents:
    """What an answer may rely on, indexed once for all of its sentences."""

    def __init__(self, texts: Sequence[str]) -> None:
        joined = "\n".join(texts)[:MAX_CONTEXT_CHARS]
        self._sentences = [_Sentence.read(text) for text in sentences(joined)]
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, sentence in enumerate(self._sentences):
            for i, word in enumerate(sentence.words):
                places = self._places[word]
                if len(places) < MAX_PLACES:
                    places.append((number, i))

    def __bool__(self) -> bool:
        return bool(self._places)

    def support(self, sentence: str) -> float:
        """From 0 to 1: the probability that the documents support it."""
        weights, bias = _weights()
        return float(1 / (1 + np.exp(-(self.features(sentence) @ weights + bias))))

    def features(self, text: str) -> NDArray[np.float64]:
        """(len(FEATURES),), each from 0 to about 1; CONTRADICTING ones are negative."""
        claim = _Sentence.read(text)
        content = claim.content_words()
        if not content:
            return np.zeros(len(FEATURES))
        best = self._best(content)
        closest = self._sentences[best[0]] if best else _Sentence.read("")
        some = {word for number in best for word in self._sentences[number].words}
        missing = [i for i, word in enumerate(claim.words) if claim.content[i] and word not in self._places]
        supporting = (
            _share(word in self._places for word in content),
            _share(word in closest.words for word in content),
            _share(word in some for word in content),
        )
        return np.array((*supporting, *(-value for value in self._contradictions(claim, missing))))

    def _contradictions(self, claim: _Sentence, missing: Sequence[int]) -> Iterator[float]:
        yield float(any(claim.numbers[i] for i in missing))
        yield sum(claim.names[i] for i in missing) / max(1, sum(claim.content))
        replaced = [i for i in missing if self._is_in_place_of_another(claim, i)]
        yield min(sum(claim.numbers[i] for i in replaced), 3) / 3
        yield min(sum(claim.names[i] for i in replaced), 3) / 3
        yield self._negation(claim)

    def _is_in_place_of_another(self, claim: _Sentence, i: int) -> bool:
        """Whether the documents have the words around word `i` with another word between them."""
        after = claim.words[i + 1 : i + 3]
        for before in claim.words[max(0, i - 2) : i]:
            for number, at in self._places.get(before, ()):
                following = self._sentences[number].words[at + 1 : at + 1 + NEAR]
                if any(following.index(word) for word in after if word in following):
                    return True
        return False

    def _negation(self, claim: _Sentence) -> float:
        """Share of words that are negated where the documents never negate them, or the reverse."""
        known = [i for i, word in enumerate(claim.words) if claim.content[i] and word in self._places]
        turned = sum(
            all(
                self._sentences[number].negated[at] != claim.negated[i]
                for number, at in self._places[claim.words[i]]
            )
            for i in known
        )
        return turned / max(1, len(known))

    def _best(self, content: Sequence[str]) -> list[int]:
        """The sentences with most of these words, best first."""
        counts: dict[int, int] = defaultdict(int)
        for word in content:
            for number in {number for number, _ in self._places.get(word, ())}:
                counts[number] += 1
        return sorted(counts, key=lambda number: (-counts[number], number))[:NUM_BEST]


def needs_check(sentence: str) -> bool:
    """Whether a sentence states something: no question, greeting or offer of help."""
    found = words(sentence)
    if not found or found[0].lower() in _OPENERS or sentence.rstrip().endswith("?"):
        return False
    return sum(is_content(word) for word in found) >= MIN_CONTENT_WORDS


def _share(hits: Iterator[bool]) -> float:
    found = list(hits)
    return sum(found) / max(1, len(found))


@cache
def _weights() -> tuple[NDArray[np.float64], float]:
    document = json.loads(WEIGHTS.read_text("utf-8"))
    return np.array([document["weights"][name] for name in FEATURES]), float(document["bias"])
