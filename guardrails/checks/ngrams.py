"""Words, pairs of words and runs of characters of texts, hashed into buckets, in numpy alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import regex
from numpy.typing import NDArray

BITS = 17
"""Bits of a bucket's number; a table of fewer rows has the number's first bits."""
CHAR_ORDERS = (3, 5)

Array = NDArray[np.float32]
Codes = NDArray[np.uint64]

_SEPARATOR = "\n"
_MIX = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0xD6E8FEB86659FD93)
_CODE = regex.compile(
    r"(?<![A-Za-z0-9])(?:[A-Za-z0-9_-]{0,40}\d[A-Za-z0-9_.:,/-]{0,80}|[A-Z][A-Z0-9]{0,20}(?:[-_][A-Z0-9]{1,20})+)"
)
"""Numbers, codes and ids: their letters mean nothing, so no verdict may hang on them."""
_DIGITS = str.maketrans("123456789\t\r\n", "000000000   ")


def grams(texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(buckets, numbers of the texts they are in), in order of the texts, once for each kind of n-gram."""
    joined = _SEPARATOR.join(_CODE.sub("0", text).lower().translate(_DIGITS) for text in texts)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    owners = np.cumsum(codes == ord(_SEPARATOR))
    for order in CHAR_ORDERS:
        if len(codes) >= order:
            yield _char_grams(codes, owners, order)
    starts, hashes = _words(codes)
    yield _buckets(hashes, 1), owners[starts]
    is_pair = owners[starts[:-1]] == owners[starts[1:]]
    yield _buckets(hashes[:-1] * _BASE + hashes[1:], 2)[is_pair], owners[starts[:-1]][is_pair]


def sums(texts: Sequence[str], table: Array) -> Array:
    """[N, H]: for each text the sum of its n-grams' rows of `table` over the root of their number."""
    total = np.zeros((len(texts), table.shape[1]), np.float32)
    counts = np.zeros(len(texts))
    shift = BITS + 1 - len(table).bit_length()
    for found, owners in grams(texts):
        buckets = found >> shift
        if len(buckets):
            counts += np.bincount(owners, minlength=len(texts))
            firsts = np.flatnonzero(np.diff(owners, prepend=-1))
            total[owners[firsts]] += np.add.reduceat(table[buckets], firsts, axis=0)
    return np.asarray(total / np.sqrt(np.maximum(counts, 1.0))[:, None], np.float32)


def _char_grams(
    codes: Codes, owners: NDArray[np.int64], order: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    count = len(codes) - order + 1
    hashes = np.zeros(count, np.uint64)
    for i in range(order):
        hashes = hashes * _BASE + codes[i : count + i]
    inside = (owners[:count] == owners[order - 1 :]) & (codes[:count] != ord(_SEPARATOR))
    return _buckets(hashes[inside], order + 2), owners[:count][inside]


def _words(codes: Codes) -> tuple[NDArray[np.int64], Codes]:
    """Starts and hashes of the runs of letters, digits and what is not ASCII."""
    is_letter = ((codes >= 97) & (codes <= 122)) | (codes == 48) | (codes == 39) | (codes > 127)
    edges = np.flatnonzero(np.diff(is_letter, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return starts, np.zeros(0, np.uint64)
    lengths = ends - starts
    inside = np.flatnonzero(is_letter)
    within = np.arange(len(inside)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    powers = _POWERS[np.minimum(within, len(_POWERS) - 1)]
    hashes = np.add.reduceat(codes[inside] * powers, np.cumsum(lengths) - lengths)
    return starts, hashes


def _powers(count: int) -> Codes:
    found = np.ones(count, np.uint64)
    for i in range(1, count):
        found[i] = found[i - 1] * _BASE
    return found


def _buckets(hashes: Codes, kind: int) -> NDArray[np.int64]:
    mixed = (hashes ^ np.uint64(kind * 0x51ED27)) * _MIX
    return ((mixed ^ (mixed >> np.uint64(29))) * _MIX >> np.uint64(64 - BITS)).astype(np.int64)


with np.errstate(over="ignore"):
    _POWERS = _powers(64)
