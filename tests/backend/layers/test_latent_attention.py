"""Latent attention equals attention with each head's keys and values written out."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.linear import WeightLayout
from backend.layers.latent_attention import HeadProduct


@pytest.mark.parametrize("layout", ["plain", "packed", "half"])
def test_each_head_has_a_matrix(layout: WeightLayout) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 5, 12, generator=generator).bfloat16().float()
    product = HeadProduct(weights, layout)
    x = torch.randn(40, 3, 16, generator=generator)[..., :12]
    y = product(x)
    torch.testing.assert_close(y, torch.einsum("thk,hnk->thn", x, weights), rtol=1e-5, atol=1e-5)
    if layout != "plain":
        assert torch.equal(torch.cat([product(row[None]) for row in x]), y)
