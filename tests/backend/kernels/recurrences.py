"""One sequence in chunks, for operations with a recurrent state, and what must hold however it is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.kernels.recurrent import State
from backend.kv.states import MAX_LOGGED

SLOTS, TOKENS, TAPS = 3, 200, 4
CUTS = [(TOKENS,), (1, 15, 5, 1, 1, 40, 9, 64, 64), (63, 2, 70, 65), (1,) * 20 + (180,)]
Operation = Callable[..., Tensor]


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Recurrence:
    """The weights and the inputs [TOKENS, W] of one layer."""

    spec: Any
    weights: Any
    inputs: Tensor

    def dirty_state(self) -> State:
        """Slots as other sequences leave them."""
        rows = random(SLOTS, TAPS - 1 + MAX_LOGGED, self.inputs.shape[1], seed=6)
        return State(random(SLOTS, 4, 16, 24, seed=5), rows)

    def run(self, operation: Operation, cuts: Sequence[int], state: State, slot: int = 1) -> Tensor:
        """The inputs in chunks of these lengths, as one sequence."""
        outputs, position, num_logged = [], 0, 0
        for count in cuts:
            chunk = [slot, num_logged, 0, count, position == 0, position]
            rows = self.inputs[position : position + count]
            outputs.append(operation(rows, self.weights, state, np.array([chunk]), self.spec))
            position, num_logged = position + count, count if count <= MAX_LOGGED else 0
        return torch.cat(outputs)

    def check_definition(
        self, operation: Operation, cuts: Sequence[int], expected: tuple[Tensor, Tensor]
    ) -> None:
        """`expected`: outputs and the last state in float64. Other slots are untouched."""
        state, before = self.dirty_state(), self.dirty_state()
        found = self.run(operation, cuts, state)
        torch.testing.assert_close(found.double(), expected[0], rtol=1e-4, atol=1e-5)
        if cuts[-1] > MAX_LOGGED:
            torch.testing.assert_close(state.recurrent[1].double(), expected[1], rtol=1e-4, atol=1e-5)
        for mine, others in zip(state, before, strict=True):
            assert torch.equal(mine[[0, 2]], others[[0, 2]])

    def check_cuts(self, operation: Operation) -> None:
        """Cuts change no bit."""
        whole = self.run(operation, CUTS[0], self.dirty_state())
        for cuts in CUTS[1:]:
            assert torch.equal(self.run(operation, cuts, self.dirty_state()), whole)

    def check_rejected(self, operation: Operation, num_accepted: int) -> None:
        """A chunk of six tokens of which some count, once run twice, as after a failure."""
        state, plain, spec = self.dirty_state(), self.dirty_state(), self.spec
        self.run(operation, (30,), state)
        others = random(6 - num_accepted, self.inputs.shape[1], seed=9)
        drafted = torch.cat((self.inputs[30 : 30 + num_accepted], others))
        for _ in range(2):
            operation(drafted, self.weights, state, np.array([[1, 0, 0, 6, 0, 30]]), spec)
        start = 30 + num_accepted
        after = np.array([[1, num_accepted, 0, 20, 0, start]])
        found = operation(self.inputs[start : start + 20], self.weights, state, after, spec)
        whole = self.run(operation, (30, num_accepted, 20), plain)
        assert torch.equal(found, whole[start:])
        assert torch.equal(state.recurrent, plain.recurrent)

    def check_company(self, operation: Operation) -> None:
        """Company changes no bit."""
        alone, together = self.dirty_state(), self.dirty_state()
        chunks = np.array([[2, 0, 0, 1, 1, 0], [0, 0, 1, 70, 1, 0], [1, 0, 71, 5, 1, 0]])
        found = operation(self.inputs[:76], self.weights, together, chunks, self.spec)
        for slot, replayed, begin, count, is_new, position in chunks.tolist():
            rows, chunk = slice(begin, begin + count), [slot, replayed, 0, count, is_new, position]
            own = operation(self.inputs[rows], self.weights, alone, np.array([chunk]), self.spec)
            assert torch.equal(own, found[rows])
        assert torch.equal(alone.recurrent, together.recurrent) and torch.equal(alone.rows, together.rows)
