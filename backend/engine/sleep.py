"""An engine that sleeps while it is idle: weights go to the host's memory, the contents of pages are dropped.

That frees its GPU for others, and the next request wakes it: vLLM calls it sleep level 1. Tensors stay the
objects that they are, as only the memory below them is given back and taken again. Graphs hold its addresses:
they are dropped, and captured again.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable

import psutil
import torch
from torch import Tensor

from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.kv.storage import KVStorage
from backend.speculative.heads import HiddenStates

logger = logging.getLogger(__name__)

Memory = tuple[list[Tensor], list[Tensor]]
"""Tensors whose contents are kept, and those whose contents are dropped."""


class OffloadedMemory:
    """The memory below some tensors, while their device is without it."""

    def __init__(self, kept: Iterable[Tensor], dropped: Iterable[Tensor]) -> None:
        """Give it back. Contents of `kept` are copied to the host; tensors may share memory."""
        storages, zeros = _storages(kept), _storages(dropped)
        self._parts: list[tuple[torch.UntypedStorage, int, torch.UntypedStorage | None]] = []
        for place, storage in (storages | zeros).items():
            size, host = storage.nbytes(), None
            if size and place not in zeros:
                host = torch.empty(size, dtype=torch.uint8).untyped_storage()
                host.copy_(storage)
            storage.resize_(0)
            self._parts.append((storage, size, host))

    @property
    def num_bytes(self) -> int:
        """Bytes that the device has back."""
        return sum(size for _, size, _ in self._parts)

    def restore(self) -> None:
        """Take it again. What was dropped is zeros. Raises OutOfMemoryError where others have it now."""
        for storage, size, host in self._parts:
            storage.resize_(size)
            if host is not None:
                storage.copy_(host)
            else:
                torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).zero_()
        self._parts.clear()


class Sleeper:
    """Lets an engine sleep when it has had no request for long, and wakes it."""

    def __init__(
        self,
        engine: Engine,
        runner: ModelRunner,
        after_s: float,
        memory: Callable[[], Memory],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`memory`: what may leave the device. Sleeps after `after_s` seconds without a request."""
        self._engine, self._runner, self._memory = engine, runner, memory
        self._after_s, self._clock = after_s, clock
        self._idle_since_s: float | None = None
        self._offloaded: OffloadedMemory | None = None

    @property
    def is_asleep(self) -> bool:
        """Whether the device is without the engine's memory."""
        return self._offloaded is not None

    def rest(self) -> None:
        """There is no request: sleep, if that has long been so."""
        now_s, adapters = self._clock(), self._engine.adapters
        if self._idle_since_s is None or (adapters is not None and adapters.is_busy):
            self._idle_since_s = now_s
        elif not self.is_asleep and now_s - self._idle_since_s >= self._after_s:
            self._sleep()

    def wake(self) -> None:
        """There is a request, or something to be loaded. Raises OutOfMemoryError."""
        self._idle_since_s = None
        if self._offloaded is None:
            return
        began_s = self._clock()
        self._offloaded.restore()
        self._offloaded = None
        self._runner.capture_graphs()
        logger.info("awake: its memory was taken again in %.1f s", self._clock() - began_s)

    def _sleep(self) -> None:
        size, free = _kept_bytes(*self._memory()), psutil.virtual_memory().available
        if size > free:
            logger.warning("stays awake: %d bytes are to be kept, and the host has %d", size, free)
            self._after_s = float("inf")
            return
        self._engine.drop_cached()
        self._runner.drop_graphs()
        self._offloaded = OffloadedMemory(*self._memory())
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        freed = self._offloaded.num_bytes / 2**30
        logger.info("asleep after %g s without a request: %.2f GiB were freed", self._after_s, freed)


def _storages(tensors: Iterable[Tensor]) -> dict[int, torch.UntypedStorage]:
    """The memory below the tensors, by its address."""
    return {each.data_ptr(): each for each in (tensor.untyped_storage() for tensor in tensors)}


def _kept_bytes(kept: Iterable[Tensor], dropped: Iterable[Tensor]) -> int:
    """What the contents of `kept` take on the host: a GPU's pages may be more than it has."""
    zeros = _storages(dropped)
    return sum(each.nbytes() for place, each in _storages(kept).items() if place not in zeros)


def device_memory() -> Memory:
    """All of this process's memory on GPUs; dropped may be what pages hold."""
    gc.collect()
    gc.unfreeze()  # what was loaded is left out of collections, and of the list of objects
    objects = gc.get_objects()
    gc.freeze()
    # By type: to ask an object for its class may run code.
    tensors = [each for each in objects if issubclass(type(each), Tensor) and each.device.type == "cuda"]
    paged = [each for each in objects if issubclass(type(each), KVStorage | HiddenStates)]
    return tensors, [tensor for each in paged for tensor in each.memory if tensor.device.type == "cuda"]
