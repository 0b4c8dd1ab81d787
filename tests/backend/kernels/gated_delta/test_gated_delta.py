"""The gated delta rule against its definition in float64, however a sequence is cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import DeltaSpec
from backend.kernels.gated_delta import DeltaWeights, gated_delta, reference
from tests.backend.kernels.recurrences import CUTS, TOKENS, Operation, Recurrence, random

SPEC = DeltaSpec(num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=24, conv_tokens=4)
COLUMNS = SPEC.num_channels + 8
WEIGHTS = DeltaWeights(random(SPEC.num_channels, 4, seed=1), -random(4, seed=2).abs(), random(4, seed=3))
INPUTS = random(TOKENS, COLUMNS, seed=4)
CASE = Recurrence(SPEC, WEIGHTS, INPUTS)
BOTH = pytest.mark.parametrize("operation", [gated_delta, reference.gated_delta], ids=["loop", "torch"])


def definition() -> tuple[Tensor, Tensor]:
    """Outputs and the last state, token by token in float64."""
    conv, rate, bias = (weight.double() for weight in WEIGHTS)
    rows = torch.cat((torch.zeros(3, COLUMNS), INPUTS)).double()
    state, outputs = torch.zeros(4, 16, 24, dtype=torch.float64), []
    for t in range(TOKENS):
        mixed = F.silu((rows[t : t + 4, : SPEC.num_channels].T * conv).sum(1))
        q, k = (F.normalize(mixed[i : i + 32].view(2, 16)).repeat_interleave(2, 0) for i in (0, 32))
        a, b = rows[t + 3, SPEC.num_channels :].split(4)
        state = state * (rate * F.softplus(a + bias)).exp()[:, None, None]
        change = b.sigmoid()[:, None] * (mixed[64:].view(4, 24) - torch.einsum("hkv,hk->hv", state, k))
        state = state + k[:, :, None] * change[:, None]
        outputs.append(torch.einsum("hkv,hk->hv", state, q) / 4)
    return torch.stack(outputs), state


@BOTH
@pytest.mark.parametrize("cuts", CUTS)
def test_the_definition(operation: Operation, cuts: Sequence[int]) -> None:
    CASE.check_definition(operation, cuts, definition())


def test_cuts_change_no_bit() -> None:
    CASE.check_cuts(gated_delta)


@BOTH
@pytest.mark.parametrize("num_accepted", [1, 3, 6])
def test_what_is_rejected_leaves_no_trace(operation: Operation, num_accepted: int) -> None:
    CASE.check_rejected(operation, num_accepted)


@pytest.mark.parametrize("threads", [1, 3])
def test_company_changes_no_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kernels.gated_delta.num_threads", lambda _: threads)
    CASE.check_company(gated_delta)
