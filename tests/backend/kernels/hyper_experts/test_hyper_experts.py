"""Gathered adapters equal a loop over tokens, and a token's result does not depend on its neighbours."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.hyper_experts import reference, run_hyper_experts


def test_equals_a_loop_over_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    down, up = (torch.randn(6, *shape, generator=generator) for shape in ((8, 3), (3, 8)))
    x = torch.randn(7, 8, generator=generator)
    numbers = torch.tensor([5, 0, 3, 3, 1, 5, 0])  # neither 2 nor 4
    rows = zip(x, numbers.tolist(), strict=True)
    expected = torch.stack([torch.nn.functional.silu(token @ down[n]) @ up[n] for token, n in rows])
    torch.testing.assert_close(run_hyper_experts(x, numbers, down, up), expected)
    torch.testing.assert_close(run_hyper_experts(x[2:3], numbers[2:3], down, up)[0], expected[2])
    monkeypatch.setattr(reference, "_PART_ELEMENTS", 100)  # 2 tokens at once, then the last one
    torch.testing.assert_close(run_hyper_experts(x, numbers, down, up), expected)
