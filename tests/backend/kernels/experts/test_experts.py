"""The sorted experts equal a loop over tokens, and a token's result does not depend on its neighbours."""

from __future__ import annotations

import torch

from backend.kernels.experts import run_experts
from backend.kernels.swiglu import swiglu
from backend.layers.linear import Linear


def test_equals_a_loop_over_tokens() -> None:
    generator = torch.Generator().manual_seed(3)
    up = [torch.randn(12, 8, generator=generator) for _ in range(5)]
    down = [torch.randn(8, 6, generator=generator) for _ in range(5)]
    x = torch.randn(7, 8, generator=generator)
    # The fifth expert stays idle.
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(7)])
    weights = torch.rand(7, 2, generator=generator)
    packed = [[Linear([weight], None, "plain") for weight in group] for group in (up, down)]
    expected = torch.stack(
        [
            sum(
                (weights[t, k] * (swiglu(x[t : t + 1] @ up[e].T) @ down[e].T)[0] for k, e in enumerate(row)),
                start=torch.zeros(8),
            )
            for t, row in enumerate(chosen.tolist())
        ]
    )
    torch.testing.assert_close(run_experts(x, chosen, weights, *packed), expected)
    alone = run_experts(x[:1], chosen[:1], weights[:1], *packed)
    torch.testing.assert_close(alone[0], expected[0])
