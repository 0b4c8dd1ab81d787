"""Gates of attention's output against their definitions, and rows that ignore their company."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import OutputGateKind
from backend.layers.linear import Linear
from backend.layers.output_gate import OutputGate, softplus

HEADS, SIZE, WIDTH = 3, 8, 20
KINDS = ("sigmoid", "softplus", "head_softplus")


def made(kind: OutputGateKind) -> tuple[OutputGate, Tensor]:
    weight = torch.randn(HEADS if kind == "head_softplus" else HEADS * SIZE, WIDTH)
    return OutputGate(Linear([weight], None, "plain"), kind), weight


@pytest.mark.parametrize("kind", KINDS)
def test_by_definition(kind: OutputGateKind) -> None:
    torch.manual_seed(1)
    gate, weight = made(kind)
    x, attended = torch.randn(7, WIDTH), torch.randn(7, HEADS * SIZE)
    made_of_x = x @ weight.T
    factors = made_of_x.sigmoid() if kind == "sigmoid" else F.softplus(made_of_x)
    expected = attended.view(7, *factors.shape[1:], -1) * factors[..., None]
    torch.testing.assert_close(gate(x, attended), expected.view(7, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_company_does_not_matter(kind: OutputGateKind) -> None:
    torch.manual_seed(2)
    gate, _ = made(kind)
    x, attended = torch.randn(37, WIDTH), torch.randn(37, HEADS * SIZE)
    gates = gate.linear(x).clone()
    gate.linear = lambda rows, _=None: gates[: len(rows)]  # a product's company is its own tests' matter
    together = gate(x, attended)
    for count in (1, 2, 5, 36):
        assert torch.equal(gate(x[:count], attended[:count]), together[:count])


def test_softplus_of_large_numbers() -> None:
    x = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4])
    torch.testing.assert_close(softplus(x), F.softplus(x))
