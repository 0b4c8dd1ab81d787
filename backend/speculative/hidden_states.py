"""The target's residual stream behind its last layer, at every slot of its KV memory.

It follows the target's pages: right for known prefixes and after preemption, and nothing is to be freed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from backend.layers.step_input import StepInput
from backend.types import PAGE_TOKENS, Plan, Sequence


class HiddenStates:
    """A StepObserver that keeps what it sees."""

    wants_layers = False

    def __init__(self, num_pages: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        # Written at once, as KV memory is.
        self._slots = torch.zeros(num_pages * PAGE_TOKENS, hidden_size, dtype=dtype, device=device)

    def see(self, plan: Plan, step: StepInput, layers: list[Tensor], hidden: Tensor) -> None:
        """See StepObserver."""
        self._slots.index_copy_(0, step.slots, hidden)

    def at(self, slots: list[int]) -> Tensor:
        """[n] → [n, D], finite: what is multiplied by 0 must leave no trace."""
        index = torch.tensor(slots, device=self._slots.device)
        return torch.nan_to_num_(self._slots.index_select(0, index))


def slots_in(sequence: Sequence, positions: Iterable[int]) -> list[int]:
    """Where the sequence's tokens at these positions lie in KV memory."""
    pages = sequence.pages
    return [pages[place // PAGE_TOKENS] * PAGE_TOKENS + place % PAGE_TOKENS for place in positions]
