"""Entries and vectors for tests of the cache."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy import float16, float32
from numpy.typing import NDArray

from cache.entry import Entry
from cache.memory_store import MemoryStore

DIMENSIONS = 16


def unit(seed: int) -> NDArray[float32]:
    vector = np.random.default_rng(seed).normal(size=DIMENSIONS).astype(float32)
    return vector / np.linalg.norm(vector)


def key_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def entry_of(
    number: int,
    *,
    tenant: str = "alice",
    partition: bytes = b"p",
    answer_bytes: int = 100,
    tokens: int = 10,
    created_s: float = 0.0,
    ttl_s: float = 100.0,
) -> Entry:
    answer = bytes(answer_bytes)
    times = (created_s, created_s + ttl_s)
    return Entry(key_of(number), partition, tenant, f"question {number}", answer, tokens, *times)


def add(store: MemoryStore, entry: Entry, number: int) -> bool:
    """Store the entry with the vector of `number`."""
    return store.add(entry, unit(number).astype(float16))
