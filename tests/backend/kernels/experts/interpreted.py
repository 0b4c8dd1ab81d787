"""A whole layer of experts by Triton, interpreted on the CPU, against the reference: for test_stacked.py."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from backend.config import ClampedGate, MoEConfig
from backend.kernels.experts import BiasedExperts, StackedExperts, kernel
from backend.kernels.linear.w8 import Device8BitWeight
from backend.kernels.lora import AdapterRows, SlotWeights
from backend.layers.linear import Linear
from backend.layers.moe import MoE
from backend.models import hyper_moe
from backend.models.hyper_moe import HyperExperts, HyperNetwork
from backend.quant.schemes import QuantizedWeight
from tests.backend.kernels.waits import Waits

EXPERTS, TOP_K, WIDE, NARROW = 6, 2, 24, 40


def made() -> MoE:
    """A layer whose experts are parts of two tensors."""
    torch.manual_seed(7)
    gate_up = [Linear([torch.randn(2 * WIDE, NARROW) / 6], None, "plain") for _ in range(EXPERTS)]
    down = [Linear([torch.randn(NARROW, WIDE) / 5], None, "plain") for _ in range(EXPERTS)]
    stacked = StackedExperts(EXPERTS, torch.float32)
    for expert in range(EXPERTS):
        gate_up[expert].move_to(stacked.gate_up, expert)
        down[expert].move_to(stacked.down, expert)
    router = Linear([torch.randn(EXPERTS, NARROW)], None, "plain")
    return MoE(MoEConfig(EXPERTS, TOP_K, WIDE, normalise_top_k=True), router, gate_up, down, stacked)


@torch.inference_mode()
def check_layer() -> None:
    """Same results as the reference, but without a wait; the matrices are views of one copy."""
    layer, x = made(), torch.randn(23, NARROW)
    stacked = layer.fused
    assert isinstance(stacked, StackedExperts)
    assert layer.down[3].matrix.data_ptr() == stacked.down.values[3].data_ptr()
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


@torch.inference_mode()
def check_biases() -> None:
    """Biases, and another gate, as the reference has them, without a wait."""
    torch.manual_seed(8)
    gate_up = torch.randn(EXPERTS, 2 * WIDE, NARROW) / 6, torch.randn(EXPERTS, 2 * WIDE)
    down = torch.randn(EXPERTS, NARROW, WIDE) / 5, torch.randn(EXPERTS, NARROW)
    pairs = (zip(*each, strict=True) for each in (gate_up, down))
    linears = [[Linear([own], [bias], "plain") for own, bias in each] for each in pairs]
    router = Linear([torch.randn(EXPERTS, NARROW)], [torch.randn(EXPERTS)], "plain")
    config = MoEConfig(EXPERTS, TOP_K, WIDE, True, has_bias=True, gate=ClampedGate(1.702, 0.8))
    layer, x = MoE(config, router, *linears), torch.randn(23, NARROW)
    expected = layer(x)
    stacked = StackedExperts(EXPERTS, torch.float32)
    for own, memory in zip(linears, (stacked.gate_up, stacked.down), strict=True):
        for expert, linear in enumerate(own):
            linear.move_to(memory, expert)
    torch.testing.assert_close(layer(x), expected)
    layer.fused = BiasedExperts(stacked, (gate_up[1], down[1]), layer.gate)
    with Waits() as waits:
        found = layer(x)
    assert not waits.reads, waits.reads
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def check_adapters() -> None:
    """Same results as the reference, without a wait; others' adapters change no bit of a row without one."""
    layer, x = made(), torch.randn(9, NARROW)
    plain = layer(x)
    for expert in (0, 2, 3, 5):  # the others have none
        for linear, parts in ((layer.gate_up[expert], (WIDE, WIDE)), (layer.down[expert], (NARROW,))):
            linear.adapters = SlotWeights(3, linear.in_features, parts, 4, torch.empty(0))
            for slot in range(3):
                factors = {
                    part: (torch.randn(3, linear.in_features) / 4, torch.randn(3, columns) / 4)
                    for part, columns in enumerate(parts)
                }
                linear.adapters.put(slot, factors)
    slots = np.array([0, -1, 2, 2, -1, 0, 0, -1, 2])
    rows = AdapterRows(slots, torch.device("cpu"))
    assert rows.on_device is not None  # uploaded once for all layers, which reads the host's own block
    with Waits() as waits:
        found = layer(x, rows)
    assert not waits.reads, waits.reads
    others = AdapterRows(np.where(slots < 0, -1, 1), torch.device("cpu"))
    assert torch.equal(layer(x, others)[slots < 0], found[slots < 0])
    layer.fused = None
    torch.testing.assert_close(found, layer(x, rows), rtol=1e-4, atol=1e-5)
    assert not torch.isclose(found, plain).all(1)[slots >= 0].any(), "adapters change their rows"
    torch.testing.assert_close(found[slots < 0], plain[slots < 0], rtol=1e-5, atol=1e-6)


def narrow_experts(rows: int, columns: int, *, last_in_floats: bool = False) -> list[Linear]:
    """Matrices of float8; the last one in floats on demand."""
    values = [torch.randn(rows, columns).to(torch.float8_e4m3fn) for _ in range(EXPERTS)]
    stored: list[Tensor | QuantizedWeight] = [
        QuantizedWeight("fp8", own, torch.rand(rows, 1) / 5, (1, columns)) for own in values
    ]
    if last_in_floats:
        stored[-1] = torch.randn(rows, columns) / 5
    return [Linear([own], None, "plain") for own in stored]


@torch.inference_mode()
def check_8_bits() -> None:
    """Experts of float8 lie in one tensor of bytes, unless one of them is in floats."""
    torch.manual_seed(9)
    for is_mixed in (False, True):
        gate_up = narrow_experts(2 * WIDE, NARROW)
        down = narrow_experts(NARROW, WIDE, last_in_floats=is_mixed)
        config = MoEConfig(EXPERTS, TOP_K, WIDE, normalise_top_k=True)
        router, x = Linear([torch.randn(EXPERTS, NARROW)], None, "plain"), torch.randn(23, NARROW)
        layer = MoE(config, router, gate_up, down)
        expected = layer(x)
        stacked = layer.fused = StackedExperts(EXPERTS, torch.float32)
        for expert in range(EXPERTS):
            gate_up[expert].move_to(stacked.gate_up, expert)
            down[expert].move_to(stacked.down, expert)
        own = gate_up[3].multiply
        assert isinstance(own, Device8BitWeight)
        assert own.values.data_ptr() == stacked.gate_up.values[3].data_ptr()
        assert (stacked.down.values.dtype is torch.float32) == (stacked.down.scales is None) == is_mixed
        with Waits() as waits:
            found = layer(x)
        assert not waits.reads, waits.reads
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        layer.fused = None
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def check_hyper_experts() -> None:
    """Adapters generated for each token equal those of the table, in pieces and without a wait."""
    torch.manual_seed(5)
    shapes = (EXPERTS, 5), (5,), (7, 10), (7,), (6, 7), (3 * NARROW, 6), (3 * NARROW, 6)
    embeddings, position, *others = (torch.randn(shape) for shape in shapes)
    network = HyperNetwork(3, embeddings[None], position[None], *others)
    moe = MoEConfig(EXPERTS, TOP_K, WIDE, normalise_top_k=True)
    table = HyperExperts(network, 0, moe, torch.float32)
    x, chosen = torch.randn(11, NARROW), torch.rand(11, EXPERTS).topk(TOP_K).indices
    limits = {"MAX_TABLE_BYTES": 0, "_MAX_GATHERED_ELEMENTS": 4 * 2 * 3 * NARROW}  # four tokens
    with patch.multiple(hyper_moe, **limits), Waits() as waits:
        generated = HyperExperts(network, 0, moe, torch.float32)
        found = generated(x, chosen)
    assert not waits.reads, waits.reads
    assert table._table is not None and generated._table is None
    torch.testing.assert_close(found, table(x, chosen), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def check_grids() -> None:
    """There are as many pieces as the worst choice needs: all experts but one have one pair."""
    for num_pairs, num_experts, size in ((1, 4, 16), (7, 3, 2), (40, 3, 16), (64, 64, 16), (31, 5, 1)):
        most = kernel._most_pieces(num_pairs, num_experts, size)
        others = min(num_experts, num_pairs) - 1
        assert most == others + -(-(num_pairs - others) // size)


CHECKS = (check_layer, check_8_bits, check_biases, check_adapters, check_hyper_experts, check_grids)
