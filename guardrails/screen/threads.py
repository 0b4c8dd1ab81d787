"""Which texts are judged in a thread of their own, and what a tenant may use of such threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

THREAD_FROM_CHARS = 4_000
"""Shorter texts are judged in the event loop's thread: they take less than the change to another one."""

T = TypeVar("T")


def is_long(texts: Iterable[str]) -> bool:
    """Whether the event loop should not wait until these are judged."""
    return sum(map(len, texts)) >= THREAD_FROM_CHARS


class Threads(Protocol):
    """What one tenant's requests may use of the threads and the encoder."""

    tenant: str
    encoder_turn: asyncio.Semaphore

    async def run(self, work: Callable[[], T], in_thread: bool) -> T:
        """The result of `work`, from a thread where it may take long."""
        ...


class ThreadPool(Protocol):
    """Threads for the long texts of all tenants."""

    def of(self, tenant: str) -> Threads:
        """What a tenant may use of them."""
        ...
