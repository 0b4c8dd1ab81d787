"""Embeddings for each layer alone, against their definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backend.kernels.linear import available_layouts
from backend.layers.layer_inputs import LayerInputBlock
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm

SIZE, WIDE = 20, 24


@pytest.mark.skipif("packed" not in available_layouts(), reason="plain products have no fixed order of sums")
def test_a_row_is_by_definition_and_the_same_in_any_company() -> None:
    torch.manual_seed(6)
    gate, out = torch.randn(SIZE, WIDE), torch.randn(WIDE, SIZE)
    linears = (Linear([weight], None, "packed") for weight in (gate, out))
    block = LayerInputBlock(*linears, RMSNorm(torch.ones(WIDE), 1e-6))
    hidden, layer_input = torch.randn(33, WIDE), torch.randn(33, SIZE)
    found = block(hidden, layer_input, None)
    fed = (F.gelu(hidden @ gate.T, approximate="tanh") * layer_input) @ out.T
    torch.testing.assert_close(found, F.rms_norm(fed, (WIDE,), eps=1e-6), rtol=1e-4, atol=1e-5)
    for row in range(33):
        assert torch.equal(block(hidden[row : row + 1], layer_input[row : row + 1], None)[0], found[row])
