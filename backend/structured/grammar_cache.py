"""Compiled grammars, refusals and compilations in progress: an LRU cache bounded in bytes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from weakref import ref

from backend.errors import RequestError
from backend.structured.compiled_grammar import CompiledGrammar

_MIN_ENTRY_BYTES = 64 << 10
"""What an entry counts at least: bounds the number of refusals, and the time to look at all entries."""

_MAX_CHEAP_GROWTH_BYTES = 64 << 20
"""Growth by use beyond which a grammar that compiles fast is compiled again, to start small."""


class OverLimit(RequestError):
    """Too slow or too large to compile; cached for `valid_s`, then tried again on request."""

    def __init__(self, message: str, param: str, valid_s: float = 0.0) -> None:
        super().__init__(message, param)
        self.until_s = time.monotonic() + valid_s


class GrammarCache:
    """Maps keys to futures of grammars. Not thread-safe.

    Sequences keep grammars alive that the cache has dropped. They count too, so that what is dropped leaves
    room only once it is gone.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Future[CompiledGrammar]] = (
            OrderedDict()
        )  # least recently used first
        self._grammars: list[ref[CompiledGrammar]] = []  # cached or in use

    @property
    def num_pending(self) -> int:
        """Compilations that are not done."""
        return sum(not future.done() for future in self._entries.values())

    @property
    def num_bytes(self) -> int:
        """Upper estimate of the memory of all grammars that are cached or in use."""
        least = _MIN_ENTRY_BYTES * len(self._entries)
        return least + sum(compiled.num_bytes + compiled.growth_bytes for compiled in self._alive())

    @property
    def has_room(self) -> bool:
        """False while the grammars in use alone, as compiled, fill the memory."""
        return sum(compiled.num_bytes for compiled in self._alive()) < self._max_bytes

    def get(self, key: bytes) -> Future[CompiledGrammar] | None:
        """Return the entry as the most recently used, unless it must be compiled (again)."""
        future = self._entries.get(key)
        if future is None or _is_stale(future):
            return None
        self._entries.move_to_end(key)
        return future

    def __getitem__(self, key: bytes) -> Future[CompiledGrammar]:
        return self._entries[key]

    def put(self, key: bytes, future: Future[CompiledGrammar]) -> None:
        """Add or replace an entry."""
        self._entries[key] = future
        self._entries.move_to_end(key)

    def count(self, compiled: CompiledGrammar) -> None:
        """Count the memory of a new grammar for as long as it is alive."""
        self._grammars = [each for each in self._grammars if each() is not None]
        self._grammars.append(ref(compiled))

    def _alive(self) -> Iterator[CompiledGrammar]:
        for each in self._grammars:
            if (compiled := each()) is not None:
                yield compiled

    def evict(self) -> None:
        """Drop stale entries, then the least recently used ones, until the memory is within its bound."""
        for key in [key for key, future in self._entries.items() if _is_stale(future)]:
            del self._entries[key]
        for key in [key for key, future in self._entries.items() if future.done()]:
            if self.num_bytes <= self._max_bytes:
                return
            del self._entries[key]


def _is_stale(cached: Future[CompiledGrammar]) -> bool:
    """True for a failure that is no refusal or has expired; for a grammar that met a limit or has grown."""
    if not cached.done() or cached.cancelled():
        return False
    error = cached.exception()
    if error is not None:
        is_refusal = isinstance(error, RequestError)
        return not is_refusal or (isinstance(error, OverLimit) and error.until_s <= time.monotonic())
    compiled = cached.result()
    return compiled.is_exhausted or (compiled.is_cheap and compiled.growth_bytes > _MAX_CHEAP_GROWTH_BYTES)
