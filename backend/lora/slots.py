"""Which adapter lies in which slot of the device, and whose turn it is. Plain Python without torch.

A sequence pins its adapter's slot while it runs. When more adapters are wanted than there are slots, they
take turns: the slots that have served longest admit only who waited before the newcomers did, run empty, and
are given away. So a turn serves a batch, and an adapter is copied once per turn, not once per request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.types import Sequence


@dataclass(slots=True)
class _Slot:
    """One place on the device."""

    adapter: str = ""  # content hash; "": empty
    pins: int = 0  # running sequences
    since_s: float = 0.0  # when its turn began
    last_used: int = 0


class AdapterSlots:
    """Deals out slots. The scheduler asks `admits`, then `take`s; `give_back` when one stops running."""

    def __init__(
        self,
        num_slots: int,
        is_loaded: Callable[[str], bool],
        is_wanted: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_loaded`: the adapter lies in host memory; `is_wanted`: an unfinished request asks for it."""
        self.loads_total = 0
        self._slots = [_Slot() for _ in range(num_slots)]
        self._place: dict[str, int] = {}
        self._is_loaded = is_loaded
        self._is_wanted = is_wanted
        self._clock = clock
        self._loads: dict[int, str] = {}
        self._starved: dict[str, float] = {}  # adapter → arrival of its first sequence without a slot
        self._closing: frozenset[int] = frozenset()
        self._closing_at_s = 0.0
        self._uses = 0
        self._num_pins = 0

    @property
    def is_contended(self) -> bool:
        """Somebody waits for a slot."""
        return bool(self._starved)

    @property
    def resident(self) -> list[str]:
        """Adapters on the device."""
        return list(self._place)

    @property
    def pending(self) -> Mapping[int, str]:
        """Slots with an adapter that is not copied into them yet, until `filled` says so."""
        return self._loads

    @property
    def num_pinned(self) -> int:
        """Slots in use by running sequences."""
        return sum(slot.pins > 0 for slot in self._slots)

    @property
    def is_used(self) -> bool:
        """A running sequence has an adapter."""
        return self._num_pins > 0

    def has(self, adapter: str) -> bool:
        """It lies in a slot, or is about to."""
        return adapter in self._place

    def begin_pass(self) -> None:
        """Before a pass over the queue: forget who found no slot and wants none any more."""
        if self._starved:
            self._starved = {a: s for a, s in self._starved.items() if self._is_wanted(a)}
            self._close()

    def admits(self, sequence: Sequence) -> bool:
        """Whether the sequence may run now, as far as its adapter is concerned."""
        adapter = sequence.request.adapter
        index = self._place.get(adapter)
        if index is not None:
            slot = self._slots[index]
            if index not in self._closing or sequence.arrival_s <= max(slot.since_s, self._closing_at_s):
                return True
        elif not self._is_loaded(adapter):
            return False
        elif self._victim() is not None:
            return True
        if adapter not in self._starved and index is None:
            self._starved[adapter] = sequence.arrival_s
            self._close()
        return False

    def take(self, sequence: Sequence) -> None:
        """The sequence, which `admits` let pass, begins to run."""
        adapter = sequence.request.adapter
        index = self._place.get(adapter)
        if index is None:
            index = self._victim()
            assert index is not None, "admits() was not asked"
            self._evict(index)
            self._slots[index].adapter = adapter
            self._slots[index].since_s = self._clock()
            self._place[adapter] = index
            self._loads[index] = adapter
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
        """The sequence runs no longer."""
        if sequence.adapter_slot >= 0:
            self._slots[sequence.adapter_slot].pins -= 1
            self._num_pins -= 1
            sequence.adapter_slot = -1

    def filled(self, index: int) -> None:
        """The slot's adapter was copied into it."""
        del self._loads[index]

    def forget(self, adapter: str) -> None:
        """The adapter exists no longer; nobody uses it."""
        index = self._place.get(adapter)
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
                assert self._place[sequence.request.adapter] == sequence.adapter_slot
                pins[sequence.adapter_slot] += 1
        assert sum(pins) == self._num_pins and pins == [s.pins for s in self._slots], (
            f"slots are pinned wrongly: {pins}"
        )

    def _close(self) -> None:
        """End the longest turns, as many as there are adapters without a slot."""
        pinned = [i for i, slot in enumerate(self._slots) if slot.pins]
        pinned.sort(key=lambda i: self._slots[i].since_s)
        self._closing = frozenset(pinned[: len(self._starved)])
        self._closing_at_s = min(self._starved.values(), default=0.0)

    def _evict(self, index: int) -> None:
        slot = self._slots[index]
        if slot.adapter:
            del self._place[slot.adapter]
            self._loads.pop(index, None)
            slot.adapter = ""

    def _victim(self) -> int | None:
        """An empty slot, else an unpinned one: of those nobody asks for, then the least recent."""
        best: int | None = None
        best_rank: tuple[bool, bool, int] | None = None
        for index, slot in enumerate(self._slots):
            if slot.pins:
                continue
            rank = (bool(slot.adapter), bool(slot.adapter) and self._is_wanted(slot.adapter), slot.last_used)
            if best_rank is None or rank < best_rank:
                best, best_rank = index, rank
        return best
