from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.kernels.experts import JoinedExperts, run_experts
from backend.layers.linear import Linear

EXPERTS, WIDE, NARROW = 5, 6, 8


def made() -> tuple[JoinedExperts, list[Linear], list[Linear]]:
    generator = torch.Generator().manual_seed(5)

    def weights(*shape: int) -> list[Tensor]:
        return [torch.randn(shape, generator=generator) for _ in range(EXPERTS)]

    gates, ups, down = weights(WIDE, NARROW), weights(WIDE, NARROW), weights(NARROW, WIDE)
    gate_up = [Linear([gate, up], None, "plain") for gate, up in zip(gates, ups, strict=True)]
    back = [Linear([weight], None, "plain") for weight in down]
    return JoinedExperts(gates, ups, down, "plain"), gate_up, back


@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_equals_the_experts_one_by_one(num_tokens: int) -> None:
    joined, gate_up, down = made()
    x = torch.randn(num_tokens, NARROW)
    chosen = torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(num_tokens)])
    weights = torch.rand(num_tokens, 2)
    expected = run_experts(x, chosen, weights, gate_up, down)
    torch.testing.assert_close(joined(x, chosen, weights), expected, rtol=1e-4, atol=1e-5)


def test_serves_a_handful_of_tokens() -> None:
    joined, _, _ = made()
    assert [n for n in range(100) if joined.serves(n)] == list(range(2, 3 * EXPERTS + 1))
