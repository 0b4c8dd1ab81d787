"""A prompt as numbers: surface features, and words hashed into buckets."""

from __future__ import annotations

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from router.signals.surface import MAX_CHARS, NAMES, read_surface

NUM_BUCKETS = 8_192
NUM_VOCABULARY = 16_384
"""Buckets that tell known words from unknown ones; few of them are hit by chance."""
NUM_SURFACE = len(NAMES) + 1
"""The surface features, and whether the request offers tools."""

_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d+|[^\w\s]")
_MAX_TOKENS = 1_000


def _sizes(words: Sequence[str]) -> Iterator[str]:
    """How much of each kind there is, with the opening words: a longer list of the same request is harder."""
    counts = Counter(words)
    numbers = [word for word in counts if word[0] == "#"]
    sizes = {
        "words": len(words) // 4,
        "numbers": sum(counts[word] for word in numbers),
        "digits": max((int(word[1:] or 0) for word in numbers), default=0),
        "commas": counts[","],
        "operators": sum(counts[sign] for sign in "+-*/=^×÷"),
    }
    opening = " ".join(words[:2])
    for name, size in sizes.items():
        yield f"{name}={min(size, 12)}"
        yield f"{opening}|{name}={min(size, 12)}"


def surface_features(text: str, *, has_tools: bool = False) -> NDArray[np.float32]:
    """(NUM_SURFACE,): see `Surface.vector`."""
    return np.array([*read_surface(text).vector(), float(has_tools)], np.float32)


def word_buckets(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Buckets of words, pairs of adjacent words and sizes; and buckets in the vocabulary, of words alone.

    Both sorted, without repetitions. Numbers count by their number of digits, so that no value is learned by
    heart.
    """
    if len(text) > MAX_CHARS:
        text = f"{text[: MAX_CHARS // 2]} {text[-MAX_CHARS // 2 :]}"
    words = [
        f"#{min(len(word), 4)}" if word.isdigit() else word
        for word in _TOKEN.findall(text.lower())[:_MAX_TOKENS]
    ]
    distinct = set(words)
    names = {*distinct, *(f"{first} {second}" for first, second in itertools.pairwise(words))}
    names.update(_sizes(words))
    return _hashed(names, NUM_BUCKETS), _hashed({w for w in distinct if w[0].isalpha()}, NUM_VOCABULARY)


def _hashed(names: Iterable[str], count: int) -> NDArray[np.int64]:
    crc32 = zlib.crc32
    return np.unique(
        np.fromiter((crc32(name.encode("utf-8", "replace")) % count for name in names), np.int64)
    )
