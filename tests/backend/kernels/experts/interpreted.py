"""A whole layer of experts by Triton, interpreted on the CPU, against the reference: for test_stacked.py."""

from __future__ import annotations

import torch

from backend.config import MoEConfig
from backend.kernels.experts import StackedExperts, kernel
from backend.layers.linear import Linear
from backend.layers.moe import MoE
from tests.backend.kernels.waits import Waits

EXPERTS, TOP_K, WIDE, NARROW = 6, 2, 24, 40


def made() -> MoE:
    """A layer whose experts are parts of two tensors."""
    torch.manual_seed(7)
    gate_up = [Linear([torch.randn(2 * WIDE, NARROW) / 6], None, "plain") for _ in range(EXPERTS)]
    down = [Linear([torch.randn(NARROW, WIDE) / 5], None, "plain") for _ in range(EXPERTS)]
    stacked = StackedExperts(EXPERTS, WIDE, NARROW, torch.float32, torch.device("cpu"))
    for expert in range(EXPERTS):
        gate_up[expert].move_to(stacked.gate_up[expert])
        down[expert].move_to(stacked.down[expert])
    router = Linear([torch.randn(EXPERTS, NARROW)], None, "plain")
    return MoE(MoEConfig(EXPERTS, TOP_K, WIDE, normalise_top_k=True), router, gate_up, down, stacked)


def check_layer() -> None:
    """Same results as the reference, but without a wait; the matrices are views of one copy."""
    layer, x = made(), torch.randn(23, NARROW)
    stacked = layer.fused
    assert isinstance(stacked, StackedExperts)
    assert layer.down[3].matrix.data_ptr() == stacked.down[3].data_ptr()
    with Waits() as waits:
        found = layer(x)
    assert not waits.reads, waits.reads
    layer.fused = None
    with Waits() as waits:
        expected = layer(x)
    assert waits.reads["tolist"], "the reference waits, and that is seen"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    layer.fused = stacked
    for begin, end in ((0, 1), (4, 9), (22, 23)):
        torch.testing.assert_close(layer(x[begin:end]), found[begin:end], rtol=1e-5, atol=1e-6)
    assert layer(x[:0]).shape == (0, NARROW)


def check_grids() -> None:
    """There are as many pieces as the worst choice needs: all experts but one have one pair."""
    for num_pairs, num_experts, size in ((1, 4, 16), (7, 3, 2), (40, 3, 16), (64, 64, 16), (31, 5, 1)):
        most = kernel._most_pieces(num_pairs, num_experts, size)
        others = min(num_experts, num_pairs) - 1
        assert most == others + -(-(num_pairs - others) // size)


if __name__ == "__main__":
    with torch.inference_mode():
        check_layer()
        check_grids()
