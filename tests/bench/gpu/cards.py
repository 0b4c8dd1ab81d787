"""The GPUs whose limits a plan names."""

from __future__ import annotations

from dataclasses import dataclass

_COPIED = 0.9
"""The share of a datasheet's bandwidth that a copy reaches: that of H100 and H200, for all others."""


@dataclass(frozen=True)
class Card:
    """What bounds a kernel."""

    name: str
    arch: int
    multiprocessors: int
    copy_bytes_per_s: float  # read and written, as a copy of memory moves them
    flops_per_s: float  # dense bfloat16
    memory_bytes: float

    def floor_us(self, num_bytes: float, num_flops: float) -> float:
        """The least time in which the card moves these bytes and computes these operations."""
        return 1e6 * max(num_bytes / self.copy_bytes_per_s, num_flops / self.flops_per_s)


CARDS = {
    card.name: card
    for card in (
        Card("h100", 90, 132, 3.0e12, 989e12, 80e9),
        Card("h200", 90, 132, 4.3e12, 989e12, 141e9),
        Card("a100", 80, 108, _COPIED * 2.04e12, 312e12, 80e9),
        Card("b200", 100, 148, _COPIED * 8.0e12, 2250e12, 180e9),
        Card("l40s", 89, 142, _COPIED * 0.864e12, 362e12, 48e9),
    )
}
