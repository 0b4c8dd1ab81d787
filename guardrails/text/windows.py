"""Cuts a text into sentences: the pieces that classifiers judge, each on its own.

The worst piece decides, so harmless words before or after an attack change nothing. A piece has at most
MAX_BYTES of UTF-8, and so at most that number of tokens; their number grows with the text alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import regex

from guardrails.cancellation import check_cancelled

MIN_CHARS = 20
"""Shorter sentences, such as answer options, are joined with those after them."""
MAX_BYTES = 240
PART_BYTES = 88
NUM_PARTED_CHARS = 1_000
"""Sentences that begin here are also judged in parts: words without a full stop hide as little in them."""

_END = regex.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s)|[。！？؟।]+|\n+|-->|<!--|</?\w[^<>\n]{0,200}>|[|;](?=\s)",
    regex.VERSION1,
)
_BREAK = regex.compile(r"[,:;–—)\]}]\s|\s")


def windows(text: str) -> list[tuple[int, int]]:
    """(start, end) of each piece without the white space around it, in order of the sentences."""
    found: list[tuple[int, int]] = []
    start = 0
    for end in _ends(text):
        check_cancelled()
        if end - start >= MIN_CHARS or end == len(text):
            for piece in _pieces(text, start, end, MAX_BYTES):
                found.append(piece)
                parts = list(_pieces(text, *piece, PART_BYTES)) if piece[0] < NUM_PARTED_CHARS else []
                found += parts if len(parts) > 1 else []
            start = end
    return found


def _ends(text: str) -> Iterator[int]:
    for match in _END.finditer(text):
        yield match.end()
    yield len(text)


def _pieces(text: str, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """A sentence, cut at breaks into pieces of at most `size` bytes."""
    while start < end:
        stop = min(end, _fitting(text, start, end, size))
        if stop < end:
            breaks = [match.end() for match in _BREAK.finditer(text, start + (stop - start) // 2, stop)]
            stop = breaks[-1] if breaks else stop
        piece = text[start:stop]
        first = start + len(piece) - len(piece.lstrip())
        last = start + len(piece.rstrip())
        if last > first:
            yield first, last
        start = stop


def _fitting(text: str, start: int, end: int, size: int) -> int:
    """The end of the longest piece from `start` on that has at most `size` bytes."""
    piece = text[start : min(end, start + size)]
    if piece.isascii():
        return start + len(piece)
    return start + len(piece.encode("utf-8", "replace")[:size].decode("utf-8", "ignore"))
