"""Checkpoints of recurrent states: copies of running sequences' slots, kept for prefixes that come again.

Plain Python: it knows which slot holds the state behind which prefix, not what a state is. Like a page, a
checkpoint is known by the digest of all tokens before it. The least recently used one makes room for another.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from backend.types import StateCheckpoint

CHECKPOINT_TOKENS = 64
"""Checkpoints lie at multiples of this, where the blocks of a scan end as well."""

INTERVAL_TOKENS = 512
"""A prompt has one at each multiple of this."""


class StateCopy(NamedTuple):
    """A slot's state, at this position, to be copied to another slot."""

    source: int
    target: int
    position: int


def last_edge(position: int) -> int:
    """The last place of a checkpoint that is not behind this position."""
    return position // CHECKPOINT_TOKENS * CHECKPOINT_TOKENS


def next_stop(start: int, end: int, branch: int) -> int:
    """Where a chunk from `start` on has to end: at the next checkpoint, or with the tokens at `end`.

    `branch`: where pages of others that begin alike end. A request of the same tokens has to compute the last
    one, so it goes on from a checkpoint before that.
    """
    stops = (start // INTERVAL_TOKENS + 1) * INTERVAL_TOKENS, branch, last_edge(end - 1)
    return min((stop for stop in stops if start < stop < end), default=end)


def is_stop(position: int, end: int, branch: int) -> bool:
    """Whether the state at a multiple of CHECKPOINT_TOKENS is kept, when there are tokens up to `end`."""
    return position % INTERVAL_TOKENS == 0 or position == branch or position >= last_edge(end - 1)


class CheckpointPool:
    """Slots from `first_slot` on, and the copies that they need."""

    __slots__ = ("_copies", "_free", "_slots", "_used")

    def __init__(self, num_slots: int, first_slot: int) -> None:
        assert num_slots > 0, "a pool has slots"
        self._slots = range(first_slot, first_slot + num_slots)
        self._free = list(reversed(self._slots))
        self._used: OrderedDict[bytes, StateCheckpoint] = OrderedDict()  # least recently used first
        self._copies: list[StateCopy] = []

    def __len__(self) -> int:
        return len(self._used)

    def digests(self) -> list[bytes]:
        """Prefixes whose states are known."""
        return list(self._used)

    def find(self, digest: bytes) -> StateCheckpoint | None:
        """The state behind the prefix with this digest. Does not count as its use."""
        return self._used.get(digest)

    def restore(self, checkpoint: StateCheckpoint, slot: int) -> None:
        """A sequence goes on from it in this slot."""
        assert checkpoint.slot >= 0, "the checkpoint's slot holds another state now"
        self._used.move_to_end(checkpoint.digest)
        checkpoint.is_kept = True
        self._copies.append(StateCopy(checkpoint.slot, slot, checkpoint.position))

    def write(
        self, digest: bytes, position: int, slot: int, previous: StateCheckpoint | None, *, is_kept: bool
    ) -> StateCheckpoint:
        """Keep the state of `slot`, in place of the `previous` one of its sequence unless that is kept."""
        if previous is not None and not previous.is_kept and previous.digest != digest:
            self._drop(previous)
        found = self._used.get(digest)
        if found is not None:
            self._used.move_to_end(digest)
            found.is_kept |= is_kept
            return found
        if not self._free:
            self._drop(next(iter(self._used.values())))
        found = self._used[digest] = StateCheckpoint(digest, position, self._free.pop(), is_kept)
        self._copies.append(StateCopy(slot, found.slot, position))
        return found

    def take_copies(self) -> list[StateCopy]:
        """What is to be copied, in this order, before the next step or checkpoint."""
        copies, self._copies = self._copies, []
        return copies

    def check_invariants(self) -> None:
        """Raise AssertionError if a slot is leaked or used twice. For tests: O(slots)."""
        used = [checkpoint.slot for checkpoint in self._used.values()]
        assert sorted(used + self._free) == list(self._slots), f"slots are leaked: {used}, {self._free}"
        for digest, checkpoint in self._used.items():
            assert checkpoint.digest == digest and checkpoint.position % CHECKPOINT_TOKENS == 0

    def _drop(self, checkpoint: StateCheckpoint) -> None:
        if checkpoint.slot >= 0:
            del self._used[checkpoint.digest]
            self._free.append(checkpoint.slot)
            checkpoint.slot = -1
