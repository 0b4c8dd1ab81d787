"""Parses server-sent events by the HTML standard: bytes, cut anywhere → the data of each event.

Lines end with LF, CRLF or CR; comments, `id:`, `retry:` are dropped; the space after a colon may be missing.
"""

from __future__ import annotations

from gateway.providers.upstream.transport import AnswerTooLong

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Longer events are refused, which bounds memory."""
_LINE_BYTES = 64
"""What a line costs in memory beyond its bytes."""

_BOM = b"\xef\xbb\xbf"


class EventReader:
    """Takes bytes as they arrive, returns the data of complete events."""

    __slots__ = ("_after_cr", "_at_start", "_data", "_data_bytes", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()  # an incomplete line
        self._data: list[bytes] = []  # `data:` lines of an incomplete event
        self._data_bytes = 0  # their size in memory
        self._after_cr = False  # a LF that comes next ends the same line as the CR
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that this chunk completes. Raises AnswerTooLong."""
        if (
            chunk.endswith(b"\n\n") and chunk.startswith(b"data: ") and chunk.find(b"\n") == len(chunk) - 2
            and not (self._pending or self._data or self._after_cr or b"\r" in chunk)
        ):  # fmt: skip
            self._at_start = False
            return [chunk[6:-2]]  # one whole event, as most chunks are
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *ended, rest = chunk.split(b"\n")
        if ended and self._pending:
            ended[0] = bytes(self._pending) + ended[0]
            self._pending.clear()
        events: list[bytes] = []
        for line in ended:
            self._line(line, events)
        self._pending += rest
        if len(self._pending) + self._data_bytes > MAX_EVENT_BYTES:
            raise AnswerTooLong(f"one of its events is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def close(self) -> list[bytes]:
        """The unfinished event when the stream ends: some servers omit the last blank line."""
        events: list[bytes] = []
        if self._pending:
            self._line(bytes(self._pending), events)
            self._pending.clear()
        self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
                self._data_bytes = 0
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._data_bytes += len(line) + _LINE_BYTES
        elif line == b"data":
            self._data.append(b"")
            self._data_bytes += _LINE_BYTES
