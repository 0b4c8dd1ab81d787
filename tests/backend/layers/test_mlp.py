"""Activations with and without a gate against their definitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from backend.config import Activation, ClampedGate
from backend.layers.linear import Linear
from backend.layers.mlp import MLP, XIELU, Gate, ScaledMLP, gate_of, geglu

WIDE, NARROW = 24, 16

GATES: dict[str, Gate] = {
    "clamped": gate_of(ClampedGate(alpha=1.702, limit=7.0)),
    "gelu_tanh": geglu,
    "plain_gelu_tanh": MLP(None, None, "plain_gelu_tanh").gate,  # type: ignore[arg-type]
    "xielu": XIELU(0.4, -0.7, 0.5, -1e-6),
}


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def blocks(activation: Activation, rows: int) -> tuple[MLP, torch.Tensor, torch.Tensor]:
    torch.manual_seed(4)
    up, down = torch.randn(rows, NARROW), torch.randn(NARROW, WIDE)
    return MLP(Linear([up], None, "plain"), Linear([down], None, "plain"), activation), up, down


def test_blocks_without_a_gate() -> None:
    x = torch.randn(5, NARROW)
    for activation, function in (
        ("relu2", lambda y: y.clamp(min=0) ** 2),
        ("plain_gelu_tanh", lambda y: F.gelu(y, approximate="tanh")),
    ):
        block, up, down = blocks(activation, WIDE)  # type: ignore[arg-type]
        torch.testing.assert_close(block(x), function(x @ up.T) @ down.T)


def test_blocks_with_a_gate() -> None:
    x = torch.randn(5, NARROW)
    block, both, down = blocks("silu", 2 * WIDE)
    gate, up = (x @ both.T).chunk(2, dim=1)
    torch.testing.assert_close(block(x), (F.silu(gate) * up) @ down.T)


def test_xielu_is_by_its_definition_and_continuous() -> None:
    activation = XIELU(0.4, -0.7, 0.5, -1e-6)
    a, c = torch.tensor([0.4, -0.7]).exp().log1p().tolist()
    c += 0.5
    x = torch.linspace(-4, 4, 81, dtype=torch.float64)
    expected = torch.where(x > 0, a * x * x + 0.5 * x, c * (x.exp() - 1 - x) + 0.5 * x)
    torch.testing.assert_close(activation(x), expected, rtol=1e-5, atol=2e-6)
    near = activation(torch.tensor([-1e-7, 0.0, 1e-7]))
    assert near.abs().max() < 2e-6


def test_factors_of_gate_and_output() -> None:
    x = torch.randn(5, NARROW)
    block, both, down = blocks("silu", 2 * WIDE)
    gate, up = (x @ both.T).chunk(2, dim=1)
    scaled = ScaledMLP(block.gate_up, block.down, (0.5, 3.0))
    torch.testing.assert_close(scaled(x), 3 * ((F.silu(0.5 * gate) * up) @ down.T))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", GATES)
def test_a_row_is_the_same_in_any_company(name: str) -> None:
    """Whether it is among a tensor's last elements, and wherever threads divide the tensor."""
    gate, generator = GATES[name], torch.Generator().manual_seed(5)
    for size in (*range(1, 71), 688, 1000):
        rows = 33 if size < 688 else 150
        x = torch.randn(rows, 2 * size, generator=generator) * 3
        alone = torch.cat([gate(x[row : row + 1].clone()) for row in range(rows)])
        for count in (*range(1, 34), rows):
            assert torch.equal(gate(x[:count].clone()), alone[:count]), f"{count} rows of {size}"


def test_a_clamped_gate() -> None:
    x = torch.randn(5, 2 * WIDE, generator=torch.Generator().manual_seed(7)) * 4
    x[0, 0], x[1, WIDE] = torch.nan, torch.nan
    gate, up = x[:, :WIDE].clamp(max=2), x[:, WIDE:].clamp(-2, 2)
    found = gate_of(ClampedGate(alpha=1.5, limit=2.0))(x)
    torch.testing.assert_close(found, (up + 1) * gate * (1.5 * gate).sigmoid(), equal_nan=True)
