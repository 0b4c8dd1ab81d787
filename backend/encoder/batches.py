"""Dynamic batching for the encoder: inputs of similar length, round-robin over the waiting requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_BATCH_TOKENS = 512
"""Padded tokens in a batch of more than one input: larger ones are no faster per token, and block longer."""

Item = tuple[int, int]
"""(request key, index of one of its inputs)."""


@dataclass(slots=True)
class _Waiting:
    key: int
    lengths: Sequence[int]
    order: list[int] = field(init=False)  # indexes of the inputs left, by ascending length

    def __post_init__(self) -> None:
        self.order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)


class BatchQueue:
    """Round-robin over requests: each batch starts with the longest input of the next request.

    So a request with one input waits for at most one batch of every other request, however many inputs those
    have. The batch is filled, again round-robin, with inputs of at least half that length: at most half of a
    batch is padding.
    """

    def __init__(self, max_batch_tokens: int = MAX_BATCH_TOKENS) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._waiting: deque[_Waiting] = deque()
        self.num_tokens = 0  # waiting
        self.num_inputs = 0  # waiting

    def add(self, key: int, lengths: Sequence[int]) -> None:
        """Enqueue a request's inputs, given by their lengths in tokens."""
        self._waiting.append(_Waiting(key, lengths))
        self.num_tokens += sum(lengths)
        self.num_inputs += len(lengths)

    def cancel(self, key: int) -> None:
        """Remove the inputs that a request has left, if any."""
        for request in self._waiting:
            if request.key == key:
                self.num_tokens -= sum(request.lengths[i] for i in request.order)
                self.num_inputs -= len(request.order)
                self._waiting.remove(request)
                return

    def next_batch(self) -> list[Item]:
        """Remove and return the inputs of the next batch; [] if the queue is empty."""
        if not self._waiting:
            return []
        longest = self._longest(self._waiting[0])
        room = max(1, self._max_batch_tokens // longest)
        batch: list[Item] = []
        took_any = True
        while took_any and len(batch) < room:
            took_any = False
            for request in self._waiting:
                fits = request.order and longest / 2 <= self._longest(request) <= longest
                if fits and len(batch) < room:
                    batch.append((request.key, self._take(request)))
                    took_any = True
        self._waiting.rotate(-1)
        self._waiting = deque(request for request in self._waiting if request.order)
        return batch

    def _longest(self, request: _Waiting) -> int:
        return request.lengths[request.order[-1]]

    def _take(self, request: _Waiting) -> int:
        index = request.order.pop()
        self.num_tokens -= request.lengths[index]
        self.num_inputs -= 1
        return index
