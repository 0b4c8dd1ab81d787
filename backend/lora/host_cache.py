"""Adapters in host memory: an LRU cache bounded in bytes, refilled from disk in the background."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from typing import Protocol

from backend.lora.adapter_weights import Adapter


class CacheOwner(Protocol):
    """What the cache asks the adapter store."""

    def may_evict(self, digest: str) -> bool:
        """Whether the copy in host memory can be dropped now: no waiting request depends on it."""
        ...

    def read_again(self, digest: str) -> Future[Adapter] | None:
        """Start reading an evicted adapter; None when no request wants it any more."""
        ...


class HostCache:
    """Maps digests to adapters. Evicts the least recently used adapter that its owner can spare."""

    def __init__(self, max_bytes: int, owner: CacheOwner) -> None:
        """`max_bytes` is exceeded while everything in memory is needed."""
        self.reads_total = 0  # adapters read again after eviction
        self._max_bytes = max_bytes
        self._owner = owner
        self._adapters: OrderedDict[str, Adapter] = OrderedDict()  # least recently used first
        self._num_bytes = 0
        self._queue: OrderedDict[str, None] = OrderedDict()  # digests to read when there is room
        self._reading: tuple[str, Future[Adapter]] | None = None

    @property
    def num_bytes(self) -> int:
        """Memory in use."""
        return self._num_bytes

    @property
    def is_reading(self) -> bool:
        """Whether an adapter is being read or waits for it."""
        return self._reading is not None or bool(self._queue)

    @property
    def pending_reads(self) -> list[Future[Adapter]]:
        """Reads in progress, to wait for."""
        return [] if self._reading is None else [self._reading[1]]

    def __contains__(self, digest: str) -> bool:
        return digest in self._adapters

    def __getitem__(self, digest: str) -> Adapter:
        return self._adapters[digest]

    def ensure_loaded(self, digest: str) -> bool:
        """Mark the adapter as recently used if it is in memory, else queue its read; True: in memory."""
        if digest in self._adapters:
            self._adapters.move_to_end(digest)
            return True
        if digest not in self._queue and (self._reading is None or self._reading[0] != digest):
            self._queue[digest] = None
            self.start_reads()
        return False

    def put(self, adapter: Adapter) -> None:
        """Keep an adapter as the most recently used, and evict others for it."""
        self._remove(adapter.digest)
        self._adapters[adapter.digest] = adapter
        self._num_bytes += adapter.num_bytes
        self._evict()

    def discard(self, digest: str) -> None:
        """Drop an adapter, and its queued read."""
        self._queue.pop(digest, None)
        self._remove(digest)

    def take_finished(self) -> tuple[str, Future[Adapter]] | None:
        """The read that has ended since the last call, if any; the caller decides about `put`."""
        if self._reading is None or not self._reading[1].done():
            return None
        finished, self._reading = self._reading, None
        return finished

    def start_reads(self) -> None:
        """Start the next queued read if none is in progress and memory has room for it."""
        while self._queue and self._reading is None:
            self._evict()
            if self._num_bytes > self._max_bytes:
                return  # all of it is needed; the next adapter that is placed on the device makes room
            digest, _ = self._queue.popitem(last=False)
            future = self._owner.read_again(digest)
            if future is not None:
                self.reads_total += 1
                self._reading = digest, future

    def _evict(self) -> None:
        for digest in list(self._adapters) if self._num_bytes > self._max_bytes else ():
            if self._num_bytes <= self._max_bytes:
                return
            if self._owner.may_evict(digest):
                self._remove(digest)

    def _remove(self, digest: str) -> None:
        adapter = self._adapters.pop(digest, None)
        if adapter is not None:
            self._num_bytes -= adapter.num_bytes
