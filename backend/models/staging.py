"""How weights reach a GPU: from the mapped file through two pinned buffers, slice by slice.

The host reads a slice from the disk while the device copies the one before. Copies are queued: what computes
on the weights later waits for them on the device's stream, not on the host.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

_SLICE_BYTES = 64 << 20
_LOGGED_BYTES = 4 << 30
"""The log tells each time that as much more was copied."""

logger = logging.getLogger(__name__)

Wait = Callable[[], None]


class Card(Protocol):
    """A device with memory of its own."""

    device: torch.device

    def buffer(self, num_bytes: int) -> Tensor:
        """Memory of the host [num_bytes] uint8 that the device reads by itself."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> Wait:
        """Queue a copy of a buffer to the device; what it returns waits until it is done."""
        ...


class CudaCard:
    """A GPU, by torch's current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def buffer(self, num_bytes: int) -> Tensor:
        """Pinned memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: Tensor, source: Tensor) -> Wait:
        """Queue a copy of a buffer."""
        target.copy_(source, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event.synchronize


class Staging:
    """Copies tensors to a card; its buffers live as long as it does."""

    def __init__(self, card: Card, slice_bytes: int = _SLICE_BYTES) -> None:
        self._card = card
        self._buffers = [card.buffer(slice_bytes) for _ in range(2)]
        self._waits: list[Wait] = [lambda: None] * 2
        self._num_bytes, self._began_s = 0, time.monotonic()

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor of the host on the card, with the same bytes; it may be freed."""
        if tensor.device.type != "cpu":
            return tensor
        found = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._card.device)
        source, target = _as_bytes(tensor), _as_bytes(found)
        size = len(self._buffers[0])
        for begin in range(0, len(source), size):
            self._copy(target[begin : begin + size], source[begin : begin + size])
        return found

    def _copy(self, target: Tensor, source: Tensor) -> None:
        buffer, wait = self._buffers[0][: len(source)], self._waits[0]
        wait()  # until the device has read what the buffer held
        buffer.copy_(source)
        self._waits[0] = self._card.copy(target, buffer)
        self._buffers.reverse()
        self._waits.reverse()
        before, self._num_bytes = self._num_bytes, self._num_bytes + len(source)
        if before // _LOGGED_BYTES != self._num_bytes // _LOGGED_BYTES:
            gib, passed_s = self._num_bytes / 2**30, time.monotonic() - self._began_s
            told = gib, self._card.device, gib / max(passed_s, 1e-3)
            logger.info("%.0f GiB of weights copied to %s, %.1f GiB/s", *told)


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def mover(device: torch.device) -> Callable[[Tensor], Tensor]:
    """What gives a tensor of the host on `device`: itself on a CPU."""
    return Staging(CudaCard(device)) if device.type == "cuda" else lambda tensor: tensor.to(device)
