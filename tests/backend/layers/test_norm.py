"""LayerNorm against its definition, with one weight and with weights per head."""

from __future__ import annotations

import pytest
import torch

from backend.layers.norm import LayerNorm


def expected(x: torch.Tensor, eps: float) -> torch.Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("has_bias", [True, False])
def test_one_weight(has_bias: bool) -> None:
    x, weight, bias = torch.randn(6, 16), torch.randn(16), torch.randn(16)
    norm = LayerNorm(weight, bias if has_bias else None, 1e-3)
    torch.testing.assert_close(norm(x), expected(x, 1e-3) * weight + (bias if has_bias else 0))


def test_what_is_added_stays_in_the_stream() -> None:
    x, added, weight = torch.randn(6, 16), torch.randn(6, 16), torch.randn(16)
    stream = x.clone()
    torch.testing.assert_close(
        LayerNorm(weight, None, 1e-5)(stream, added), expected(x + added, 1e-5) * weight
    )
    assert torch.equal(stream, x + added)


def test_weights_per_head() -> None:
    heads, weight = torch.randn(6, 3, 8), torch.randn(3, 8)
    torch.testing.assert_close(LayerNorm(weight, None, 1e-5)(heads), expected(heads, 1e-5) * weight)
