"""Mamba-2 against its definition in float64, however a sequence is cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import MambaSpec
from backend.kernels.mamba2 import MambaWeights, mamba2, reference
from tests.backend.kernels.recurrences import CUTS, TOKENS, Operation, Recurrence, random

SPEC = MambaSpec(
    num_heads=4, num_groups=2, head_dim=24, state_size=16, conv_tokens=4, time_step_limits=(0.3, 1.5)
)
COLUMNS = SPEC.row_width
WEIGHTS = MambaWeights(
    random(SPEC.num_channels, 4, seed=1),
    random(SPEC.num_channels, seed=7),
    -random(4, seed=2).abs(),
    random(4, seed=3),
    random(4, seed=8),
)
INPUTS = random(TOKENS, COLUMNS, seed=4)
CASE = Recurrence(SPEC, WEIGHTS, INPUTS)
BOTH = pytest.mark.parametrize("operation", [mamba2, reference.mamba2], ids=["loop", "torch"])


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


@BOTH
@pytest.mark.parametrize("cuts", CUTS)
def test_the_definition(operation: Operation, cuts: Sequence[int]) -> None:
    CASE.check_definition(operation, cuts, definition())


def test_cuts_change_no_bit() -> None:
    CASE.check_cuts(mamba2)


@BOTH
@pytest.mark.parametrize("num_accepted", [1, 3, 6])
def test_what_is_rejected_leaves_no_trace(operation: Operation, num_accepted: int) -> None:
    CASE.check_rejected(operation, num_accepted)


@pytest.mark.parametrize("threads", [1, 3])
def test_company_changes_no_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kernels.mamba2.num_threads", lambda _: threads)
    CASE.check_company(mamba2)
