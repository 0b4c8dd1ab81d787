"""The loop over small experts: equal to the experts one by one, and each token's result is its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.kernels.experts import FusedExperts, run_experts
from backend.layers.linear import Linear

EXPERTS, TOP_K, WIDE, NARROW = 5, 2, 64, 32


def made(dtype: torch.dtype) -> tuple[FusedExperts, list[Linear], list[Linear]]:
    generator = torch.Generator().manual_seed(5)

    def weights(*shape: int) -> list[Tensor]:
        return [torch.randn(shape, generator=generator).to(dtype) / 8 for _ in range(EXPERTS)]

    gates, ups, down = weights(WIDE, NARROW), weights(WIDE, NARROW), weights(NARROW, WIDE)
    gate_up = [Linear([gate.float(), up.float()], None, "plain") for gate, up in zip(gates, ups, strict=True)]
    back = [Linear([weight.float()], None, "plain") for weight in down]
    return FusedExperts(gates, ups, down, TOP_K), gate_up, back


def routed(num_tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, NARROW, generator=generator)
    order = [torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(num_tokens)]
    return x, torch.stack(order), torch.rand(num_tokens, TOP_K, generator=generator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_tokens", [1, 2, 9, 40])
def test_equals_the_experts_one_by_one(num_tokens: int, dtype: torch.dtype) -> None:
    small, gate_up, down = made(dtype)
    x, chosen, weights = routed(num_tokens)
    expected = run_experts(x, chosen, weights, gate_up, down)
    torch.testing.assert_close(small(x, chosen, weights), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_tokens_result_is_the_same_bits_whatever_lies_beside_it(dtype: torch.dtype) -> None:
    """One, two or four rows at a time: by how many tokens share an expert."""
    small, _, _ = made(dtype)
    x, chosen, weights = routed(40)
    together = small(x, chosen, weights)
    for first, end in ((0, 1), (0, 2), (3, 6), (7, 20), (39, 40)):
        alone = small(x[first:end], chosen[first:end], weights[first:end])
        assert torch.equal(alone, together[first:end])


def test_no_tokens_and_idle_experts() -> None:
    small, gate_up, down = made(torch.bfloat16)
    x, chosen, weights = routed(6)
    chosen = chosen.clamp(max=1)
    chosen[:, 1] = 1 - chosen[:, 0]
    expected = run_experts(x, chosen, weights, gate_up, down)
    torch.testing.assert_close(small(x, chosen, weights), expected, rtol=1e-5, atol=1e-6)
    assert small(x[:0], chosen[:0], weights[:0]).shape == (0, NARROW)


def test_large_activations_stay_finite_and_not_a_number_stays_seen() -> None:
    small, gate_up, down = made(torch.float32)
    x, chosen, weights = routed(4)
    x[:2] *= 1e4
    expected = run_experts(x, chosen, weights, gate_up, down)
    torch.testing.assert_close(small(x, chosen, weights), expected, rtol=1e-4, atol=1e-4)
    x[3] = torch.nan
    assert small(x, chosen, weights)[3].isnan().all()
    torch.testing.assert_close(small(x, chosen, weights)[:3], expected[:3], rtol=1e-4, atol=1e-4)


def test_holds_what_is_small_and_made_of_whole_tiles() -> None:
    assert FusedExperts.fits(8, 256, 192)
    assert not FusedExperts.fits(8, 256, 200)
    assert not FusedExperts.fits(8, 250, 192)
    assert not FusedExperts.fits(8, 14336, 4096)
