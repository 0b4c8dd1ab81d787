"""Decompresses an upstream's body in bounded pieces and at a bounded ratio.

Upstreams are told `identity`; some compress all the same. What they send may also be a compression bomb.
"""

from __future__ import annotations

import zlib

MAX_PIECE_BYTES = 64 * 1024
MAX_RATIO = 100
"""Decompressed bytes per compressed byte. Text reaches 20; an answer that repeats one event, about 100."""
FREE_BYTES = 1024 * 1024
"""Decompressed bytes before the ratio counts: short answers may repeat themselves."""

_GZIP_OR_ZLIB = 47  # zlib's `wbits`: detects which from the header
_REFUSED = {"br", "compress", "zstd"}
"""Named in the error; other names are the upstream's own words."""


class DecompressionError(Exception):
    """The body cannot be decompressed, or must not be. The message repeats nothing of the upstream's."""


class RatioExceeded(DecompressionError):
    """The body holds more than its size allows."""


class Decompressor:
    """One gzip or zlib body: `feed` compressed bytes, `take` until it returns b"", `close` at the end."""

    def __init__(self, encoding: str) -> None:
        """Raises DecompressionError for a content encoding other than gzip and deflate."""
        encoding = encoding.strip().lower()
        if encoding not in {"gzip", "x-gzip", "deflate"}:
            name = repr(encoding) if encoding in _REFUSED else "an unknown one"
            raise DecompressionError(f"the upstream's content encoding is {name}; it was told `identity`")
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._pending = b""  # compressed
        self._has_more = False  # the last piece was full: the stream may hold more without new input
        self._in_bytes = 0
        self._out_bytes = 0

    def feed(self, data: bytes) -> None:
        """Add compressed bytes."""
        self._pending += data
        self._in_bytes += len(data)

    def take(self) -> bytes:
        """At most MAX_PIECE_BYTES, b"" when there is nothing more. Raises DecompressionError."""
        while self._pending or self._has_more:
            if self._stream.eof:  # a gzip file may have several members
                self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
            try:
                piece = self._stream.decompress(self._pending, MAX_PIECE_BYTES)
            except zlib.error as error:
                raise DecompressionError("the upstream's compressed answer is broken") from error
            self._pending = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            self._has_more = len(piece) == MAX_PIECE_BYTES and not self._stream.eof
            if piece:
                self._count(len(piece))
                return piece
        return b""

    def close(self) -> None:
        """The body has ended. Raises DecompressionError when the compressed data has not."""
        if self._in_bytes and not self._stream.eof:
            raise DecompressionError("the upstream's compressed answer is cut off")

    def _count(self, size_bytes: int) -> None:
        self._out_bytes += size_bytes
        if self._out_bytes > max(FREE_BYTES, MAX_RATIO * self._in_bytes):
            raise RatioExceeded(f"the upstream's answer is compressed more than {MAX_RATIO} times")
