"""Which adapter is in which device slot, and who gets one next. Plain Python without torch.

A sequence pins its adapter's slot while it runs. When more adapters are wanted than there are slots, they
take turns: the slots with the longest turns close, that is, they admit only sequences that arrived before the
adapter that waits for a slot, drain, and are reassigned. So one turn serves a batch of requests, and an
adapter is copied once per turn, not once per request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.types import Sequence


@dataclass(slots=True)
class _Slot:
    """One slot of the device."""

    adapter: str = ""  # content hash; "": empty
    pins: int = 0  # running sequences
    since_s: float = 0.0  # when its turn began
    last_used: int = 0


class AdapterSlots:
    """Assigns slots. The scheduler asks `admits`, then calls `take`, and `give_back` at the end."""

    def __init__(
        self,
        num_slots: int,
        ensure_loaded: Callable[[str], bool],
        is_wanted: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ensure_loaded`: whether an adapter is in host memory; if not, starts to load it.

        `is_wanted`: whether an unfinished request asks for it.
        """
        self.loads_total = 0
        self._slots = [_Slot() for _ in range(num_slots)]
        self._slot_of: dict[str, int] = {}
        self._ensure_loaded = ensure_loaded
        self._is_wanted = is_wanted
        self._clock = clock
        self._pending: dict[int, str] = {}
        self._starved: dict[str, float] = {}  # adapter → arrival of its first sequence that found no slot
        self._closing: frozenset[int] = frozenset()
        self._closing_at_s = 0.0
        self._uses = 0
        self._num_pins = 0

    @property
    def resident(self) -> list[str]:
        """Adapters that have a slot."""
        return list(self._slot_of)

    @property
    def pending(self) -> Mapping[int, str]:
        """Slots whose adapter is not copied to the device yet; `filled` ends that."""
        return self._pending

    @property
    def is_used(self) -> bool:
        """Whether a running sequence has an adapter."""
        return self._num_pins > 0

    def has(self, adapter: str) -> bool:
        """Whether the adapter has a slot; it may still be `pending`."""
        return adapter in self._slot_of

    def begin_pass(self) -> None:
        """Before a pass over the queue: drop waiting adapters that no request wants any more."""
        if self._starved:
            self._starved = {a: s for a, s in self._starved.items() if self._is_wanted(a)}
            self._close()

    def admits(self, sequence: Sequence) -> bool:
        """Whether the sequence's adapter lets it run now; if not, that is loaded or waits for a slot."""
        adapter = sequence.request.adapter
        index = self._slot_of.get(adapter)
        if index is not None:
            slot = self._slots[index]
            if index not in self._closing or sequence.arrival_s <= max(slot.since_s, self._closing_at_s):
                return True
        elif not self._ensure_loaded(adapter):
            return False
        elif self._victim() is not None:
            return True
        if adapter not in self._starved and index is None:
            self._starved[adapter] = sequence.arrival_s
            self._close()
        return False

    def take(self, sequence: Sequence) -> None:
        """Pin the slot of a sequence that `admits` let pass, and that begins to run."""
        adapter = sequence.request.adapter
        index = self._slot_of.get(adapter)
        if index is None:
            index = self._victim()
            assert index is not None, "take() without admits()"
            self._evict(index)
            self._slots[index].adapter = adapter
            self._slots[index].since_s = self._clock()
            self._slot_of[adapter] = index
            self._pending[index] = adapter
            self.loads_total += 1
            if self._starved.pop(adapter, None) is not None:
                self._close()
        slot = self._slots[index]
        slot.pins += 1
        self._num_pins += 1
        self._uses += 1
        slot.last_used = self._uses
        sequence.adapter_slot = index

    def give_back(self, sequence: Sequence) -> None:
        """Unpin the slot of a sequence that stops running."""
        if sequence.adapter_slot >= 0:
            self._slots[sequence.adapter_slot].pins -= 1
            self._num_pins -= 1
            sequence.adapter_slot = -1

    def filled(self, index: int) -> None:
        """The slot's adapter was copied to the device."""
        del self._pending[index]

    def forget(self, adapter: str) -> None:
        """Free the slot of an adapter that was dropped; no sequence may be running with it."""
        index = self._slot_of.get(adapter)
        if index is not None:
            assert not self._slots[index].pins, f"adapter {adapter!r} is in use"
            self._evict(index)
        if self._starved.pop(adapter, None) is not None:
            self._close()

    def check_invariants(self, running: list[Sequence]) -> None:
        """Raise AssertionError on a wrong pin. For tests."""
        pins = [0] * len(self._slots)
        for sequence in running:
            if sequence.request.adapter:
                assert self._slot_of[sequence.request.adapter] == sequence.adapter_slot
                pins[sequence.adapter_slot] += 1
        assert sum(pins) == self._num_pins and pins == [s.pins for s in self._slots], (
            f"wrong pin counts: {pins}"
        )

    def _close(self) -> None:
        """Close the slots with the longest turns, one for each adapter that waits for a slot."""
        pinned = [i for i, slot in enumerate(self._slots) if slot.pins]
        pinned.sort(key=lambda i: self._slots[i].since_s)
        self._closing = frozenset(pinned[: len(self._starved)])
        self._closing_at_s = min(self._starved.values(), default=0.0)

    def _evict(self, index: int) -> None:
        slot = self._slots[index]
        if slot.adapter:
            del self._slot_of[slot.adapter]
            self._pending.pop(index, None)
            slot.adapter = ""

    def _victim(self) -> int | None:
        """An empty slot, else an unpinned one: first unwanted adapters, then the least recently used."""
        best: int | None = None
        best_rank: tuple[bool, bool, int] | None = None
        for index, slot in enumerate(self._slots):
            if slot.pins:
                continue
            rank = (bool(slot.adapter), bool(slot.adapter) and self._is_wanted(slot.adapter), slot.last_used)
            if best_rank is None or rank < best_rank:
                best, best_rank = index, rank
        return best
