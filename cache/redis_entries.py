"""What Redis holds, read as if anyone could have written it: entries, vectors, changes and its errors."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy import float16, float32
from numpy.typing import NDArray
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from cache.entry import Entry, Selector
from cache.evidence import Verdict

MAX_ENTRY_BYTES = 16 << 20
"""Size of an entry or its vector; what is larger is not read. A gateway's own answers are far smaller."""
KEY_BYTES = 32
MAX_NORM_ERROR = 0.05
"""Error in the length of a vector, which is 1; float16 rounds by far less."""

Vector = NDArray[float16]


class Change(msgspec.Struct, frozen=True, array_like=True):
    """What the stream tells: an entry was added or judged, or some were forgotten."""

    origin: bytes
    key: bytes = b""
    selector: Selector | None = None
    verdict: Verdict | None = None


class Undecodable(Exception):
    """A value is not what this code writes there."""


def decode_entry(key: bytes, entry: bytes, vector: bytes) -> tuple[Entry, Vector | None]:
    """The entry of `key` and its vector. Raises Undecodable."""
    try:
        found = msgspec.msgpack.decode(entry, type=Entry)
    except (ValueError, RecursionError):
        raise Undecodable("it is no entry") from None
    times = (found.created_s, found.expires_s)
    if found.key != key or not all(map(math.isfinite, times)) or found.saved_tokens < 0:
        raise Undecodable("its fields cannot be")
    return found, _decode_vector(vector) if vector else None


def decode_change(fields: object) -> Change:
    """The change of one item of the stream. Raises Undecodable."""
    content = fields.get(b"change") if isinstance(fields, dict) else None
    try:
        found = msgspec.msgpack.decode(content or b"", type=Change)
    except (ValueError, RecursionError):
        raise Undecodable("it is no change") from None
    if found.verdict is not None and not 0.0 <= found.verdict.max_error_rate <= 1.0:
        raise Undecodable("its verdict cannot be")
    return found


def _decode_vector(content: bytes) -> Vector:
    if len(content) % 2:
        raise Undecodable("its vector is cut")
    vector = np.frombuffer(content, float16)
    norm = float(np.linalg.norm(vector.astype(float32)))
    if not abs(norm - 1.0) <= MAX_NORM_ERROR:  # also of what is no number
        raise Undecodable("its vector cannot be")
    return vector


def is_wrong_type(result: object) -> bool:
    """Whether a command met a value of another type."""
    return isinstance(result, ResponseError) and str(result).startswith("WRONGTYPE")


def why(error: BaseException) -> str:
    """What is the matter with Redis, in words; never what it holds, or its URL."""
    reasons: tuple[tuple[type[Exception], str], ...] = (
        (ReadOnlyError, "it is a read-only replica"),
        (OutOfMemoryError, "it has no memory left (maxmemory)"),
        (BusyLoadingError, "it is loading its data"),
        (NoPermissionError, "its user may not do that"),
        (AuthenticationError, "it refuses the password"),
        (ResponseError, "it refuses the command"),
    )
    for kind, reason in reasons:
        if isinstance(error, kind):
            return reason
    return f"it does not answer ({type(error).__name__})"
