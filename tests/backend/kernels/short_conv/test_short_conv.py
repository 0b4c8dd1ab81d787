"""The short convolution against torch's, however a sequence is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.recurrent import State
from backend.kernels.short_conv import short_conv
from backend.kv.states import MAX_LOGGED

CHANNELS, TAPS, TOKENS = 21, 4, 60


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WEIGHT, BIAS, INPUTS = random(CHANNELS, TAPS, seed=1), random(CHANNELS, seed=2), random(60, CHANNELS, seed=3)


def dirty_state() -> State:
    """Slots as other sequences leave them."""
    return State(torch.zeros(3, 0), random(3, TAPS - 1 + MAX_LOGGED, CHANNELS, seed=4))


def run(cuts: Sequence[int], state: State) -> Tensor:
    outputs, position, num_logged = [], 0, 0
    for count in cuts:
        chunks = np.array([[1, num_logged, 0, count, position == 0, position]])
        outputs.append(short_conv(INPUTS[position : position + count], WEIGHT, BIAS, state, chunks))
        position, num_logged = position + count, count if count <= MAX_LOGGED else 0
    return torch.cat(outputs)


@pytest.mark.parametrize("cuts", [(60,), (1, 2, 1, 9, 10, 37), (1,) * 20 + (40,)])
def test_the_definition(cuts: Sequence[int]) -> None:
    state, before = dirty_state(), dirty_state()
    found = run(cuts, state)
    padded = F.pad(INPUTS.T, (TAPS - 1, 0)).double()
    expected = F.conv1d(padded, WEIGHT.double()[:, None], BIAS.double(), groups=CHANNELS).T
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(found, run((60,), dirty_state()))
    assert torch.equal(state.rows[[0, 2]], before.rows[[0, 2]])


@pytest.mark.parametrize("num_accepted", [1, 3, 6])
def test_what_is_rejected_leaves_no_trace(num_accepted: int) -> None:
    state = dirty_state()
    run((30,), state)
    drafted = torch.cat((INPUTS[30 : 30 + num_accepted], random(6 - num_accepted, CHANNELS, seed=9)))
    for _ in range(2):
        short_conv(drafted, WEIGHT, BIAS, state, np.array([[1, 0, 0, 6, 0, 30]]))
    start = 30 + num_accepted
    after = np.array([[1, num_accepted, 0, 20, 0, start]])
    found = short_conv(INPUTS[start : start + 20], WEIGHT, BIAS, state, after)
    assert torch.equal(found, run((60,), dirty_state())[start : start + 20])
