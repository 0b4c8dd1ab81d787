"""Mamba-2 against its definition in float64, however a sequence is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import MambaSpec
from backend.kernels.mamba2 import MambaWeights, mamba2, reference
from backend.kernels.recurrent import State
from backend.kv.states import MAX_LOGGED

SPEC = MambaSpec(
    num_heads=4, num_groups=2, head_dim=24, state_size=16, conv_tokens=4, time_step_limits=(0.3, 1.5)
)
COLUMNS = SPEC.row_width
SLOTS, TOKENS = 3, 200
CUTS = [(TOKENS,), (1, 15, 5, 1, 1, 40, 9, 64, 64), (63, 2, 70, 65), (1,) * 20 + (180,)]


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WEIGHTS = MambaWeights(
    random(SPEC.num_channels, 4, seed=1),
    random(SPEC.num_channels, seed=7),
    -random(4, seed=2).abs(),
    random(4, seed=3),
    random(4, seed=8),
)
INPUTS = random(TOKENS, COLUMNS, seed=4)


def dirty_state() -> State:
    """Slots as other sequences leave them."""
    return State(random(SLOTS, *SPEC.state_shape, seed=5), random(SLOTS, 3 + MAX_LOGGED, COLUMNS, seed=6))


def run(operation: Callable[..., Tensor], cuts: Sequence[int], state: State, slot: int = 1) -> Tensor:
    """The inputs in chunks of these lengths, as one sequence."""
    outputs, position, num_logged = [], 0, 0
    for count in cuts:
        chunk = [slot, num_logged, 0, count, position == 0, position]
        rows = INPUTS[position : position + count]
        outputs.append(operation(rows, WEIGHTS, state, np.array([chunk]), SPEC))
        position, num_logged = position + count, count if count <= MAX_LOGGED else 0
    return torch.cat(outputs)


def definition() -> tuple[Tensor, Tensor]:
    """Outputs and the last state, token by token in float64."""
    conv, conv_bias, rate, bias, skip = (weight.double() for weight in WEIGHTS)
    rows = torch.cat((torch.zeros(3, COLUMNS), INPUTS)).double()
    state, outputs = torch.zeros(4, 16, 24, dtype=torch.float64), []
    for t in range(TOKENS):
        mixed = F.silu((rows[t : t + 4, : SPEC.num_channels].T * conv).sum(1) + conv_bias)
        x, b, c = mixed.split([96, 32, 32])
        x, b, c = x.view(4, 24), b.view(2, 16).repeat_interleave(2, 0), c.view(2, 16).repeat_interleave(2, 0)
        step = F.softplus(rows[t + 3, SPEC.num_channels :] + bias).clamp(0.3, 1.5)
        state = state * (rate * step).exp()[:, None, None] + b[:, :, None] * (step[:, None] * x)[:, None]
        outputs.append(torch.einsum("hnp,hn->hp", state, c) + skip[:, None] * x)
    return torch.stack(outputs), state


@pytest.mark.parametrize("operation", [mamba2, reference.mamba2], ids=["loop", "torch"])
@pytest.mark.parametrize("cuts", CUTS)
def test_the_definition(operation: Callable[..., Tensor], cuts: Sequence[int]) -> None:
    state, before = dirty_state(), dirty_state()
    outputs, last = definition()
    found = run(operation, cuts, state)
    torch.testing.assert_close(found.double(), outputs, rtol=1e-4, atol=1e-5)
    if cuts[-1] > MAX_LOGGED:
        torch.testing.assert_close(state.recurrent[1].double(), last, rtol=1e-4, atol=1e-5)
    for mine, others in zip(state, before, strict=True):
        assert torch.equal(mine[[0, 2]], others[[0, 2]])


def test_cuts_change_no_bit() -> None:
    whole = run(mamba2, CUTS[0], dirty_state())
    for cuts in CUTS[1:]:
        assert torch.equal(run(mamba2, cuts, dirty_state()), whole)


@pytest.mark.parametrize("operation", [mamba2, reference.mamba2], ids=["loop", "torch"])
@pytest.mark.parametrize("num_accepted", [1, 3, 6])
def test_what_is_rejected_leaves_no_trace(operation: Callable[..., Tensor], num_accepted: int) -> None:
    """A chunk of six tokens of which some count, once run twice, as after a failure."""
    state, plain = dirty_state(), dirty_state()
    run(operation, (30,), state)
    drafted = torch.cat((INPUTS[30 : 30 + num_accepted], random(6 - num_accepted, COLUMNS, seed=9)))
    for _ in range(2):
        operation(drafted, WEIGHTS, state, np.array([[1, 0, 0, 6, 0, 30]]), SPEC)
    start = 30 + num_accepted
    after = np.array([[1, num_accepted, 0, 20, 0, start]])
    found = operation(INPUTS[start : start + 20], WEIGHTS, state, after, SPEC)
    whole = run(operation, (30, num_accepted, 20), plain)
    assert torch.equal(found, whole[start:])
    assert torch.equal(state.recurrent, plain.recurrent)


@pytest.mark.parametrize("threads", [1, 3])
def test_company_changes_no_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kernels.mamba2.num_threads", lambda _: threads)
    alone, together = dirty_state(), dirty_state()
    chunks = np.array([[2, 0, 0, 1, 1, 0], [0, 0, 1, 70, 1, 0], [1, 0, 71, 5, 1, 0]])
    found = mamba2(INPUTS[:76], WEIGHTS, together, chunks, SPEC)
    for slot, replayed, begin, count, is_new, position in chunks.tolist():
        chunk = np.array([[slot, replayed, 0, count, is_new, position]])
        rows = INPUTS[begin : begin + count]
        assert torch.equal(mamba2(rows, WEIGHTS, alone, chunk, SPEC), found[begin : begin + count])
    assert torch.equal(alone.recurrent, together.recurrent) and torch.equal(alone.rows, together.rows)
