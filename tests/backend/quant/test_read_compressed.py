"""Weights as compressed-tensors itself writes them are read as it reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from backend.config import WeightFormat
from backend.errors import CheckpointError
from backend.quant.read_compressed import read_compressed
from backend.quant.schemes import QuantizedWeight
from backend.quant.stored import unpack
from tests.backend.quant.tensors import stored

N, K = 24, 64


def fixed(kind: str) -> dict[str, Any]:
    return {"num_bits": 8, "type": kind, "dynamic": True, "strategy": "token"}


def library(
    name: str, weights: dict[str, Any], shape: tuple[int, int] = (N, K), inputs: str | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """What the library writes for a random weight, and what it reads from that."""
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=args,
        input_activations=None if inputs is None else QuantizationArgs(**fixed(inputs)),
    )
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.1
    low, high = _extremes(weight, args)
    scales, zeros = calculate_qparams(low, high, args)
    state = {"weight": weight, "weight_scale": scales}
    if zeros is not None and not args.symmetric:
        state["weight_zero_point"] = zeros
    compressor = BaseCompressor.get_value_from_registry(name)
    written = compressor.compress(state, scheme)
    value = compressor.decompress(dict(written), scheme)["weight"]
    return {f".{key}": tensor for key, tensor in written.items()}, value.float()


def _extremes(weight: Tensor, args: QuantizationArgs) -> tuple[Tensor, Tensor]:
    """The least and the largest element of each block."""
    n, k = weight.shape
    rows, columns = {
        "tensor": (n, k),
        "channel": (1, k),
        "group": (1, args.group_size),
        "block": tuple(args.block_structure or ()),
    }[str(args.strategy)]
    blocks = [[part.aminmax() for part in row.split(columns, 1)] for row in weight.split(rows, 0)]
    low = torch.stack([torch.stack([each.min for each in row]) for row in blocks])
    high = torch.stack([torch.stack([each.max for each in row]) for row in blocks])
    return (low[0], high[0]) if args.strategy == "tensor" else (low, high)


def read(tensors: dict[str, Tensor], each: WeightFormat, shape: tuple[int, int] = (N, K)) -> QuantizedWeight:
    found = read_compressed(stored("m", tensors), "m", shape, [each])
    assert found is not None
    return found


def refuse(tensors: dict[str, Tensor], each: WeightFormat, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tensors, each)
    assert problem in str(caught.value)


INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}
ASYMMETRIC = {"symmetric": False}


@pytest.mark.parametrize(
    ("weights", "block", "is_symmetric"),
    [
        (INT8, (1, 0), True),
        (INT8 | ASYMMETRIC, (1, 0), False),
        (INT8 | {"strategy": "tensor"}, (0, 0), True),
        (INT8 | ASYMMETRIC | {"strategy": "tensor"}, (0, 0), False),
        (INT8 | {"strategy": "group", "group_size": 16}, (1, 16), True),
    ],
)
def test_integers(weights: dict[str, Any], block: tuple[int, int], is_symmetric: bool) -> None:
    tensors, value = library("int-quantized", weights, inputs="int")
    found = read(tensors, WeightFormat("int8", 8, block, is_symmetric, is_packed=False))
    assert torch.equal(found.dequantize(), value)
    assert (found.zeros is None) == is_symmetric


@pytest.mark.parametrize(
    ("weights", "block"),
    [
        (FP8, (1, 0)),
        (FP8 | {"strategy": "tensor"}, (0, 0)),
        (FP8 | {"strategy": "block", "block_structure": [16, 32]}, (16, 32)),
        (FP8 | {"strategy": "block", "block_structure": [128, 128]}, (128, 128)),
    ],
)
@pytest.mark.parametrize("shape", [(24, 64), (25, 70)])
def test_fp8(weights: dict[str, Any], block: tuple[int, int], shape: tuple[int, int]) -> None:
    """Blocks at the edges may be ragged."""
    tensors, value = library("float-quantized", weights, shape, inputs="float")
    found = read(tensors, WeightFormat("fp8", 8, block, is_packed=False), shape)
    assert torch.equal(found.dequantize(), value)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize(
    ("strategy", "block", "shape"),
    [
        ("group", (1, 16), (24, 64)),
        ("group", (1, 16), (21, 48)),
        ("channel", (1, 0), (24, 64)),
        ("channel", (1, 0), (21, 45)),
    ],
)
def test_packed_integers(
    bits: int, is_symmetric: bool, strategy: str, block: tuple[int, int], shape: tuple[int, int]
) -> None:
    """Rows and columns need not fill their last word."""
    weights = {"num_bits": bits, "strategy": strategy, "group_size": block[1] or None}
    weights |= {"symmetric": is_symmetric}
    tensors, value = library("pack-quantized", weights, shape)
    found = read(tensors, WeightFormat("int4" if bits == 4 else "w8a16", bits, block, is_symmetric), shape)
    assert torch.equal(found.dequantize(), value)
    assert -(1 << bits - 1) <= found.values.min().item() <= found.values.max().item() < 1 << bits - 1


def test_columns_of_packed_integers_in_the_order_of_their_groups() -> None:
    """Files of older versions of the library: version 0.20 writes none."""
    tensors, value = library("pack-quantized", INT4)
    chosen = torch.randperm(K, generator=torch.Generator().manual_seed(1))
    groups = torch.empty(K, dtype=torch.int32)
    groups[chosen] = torch.arange(K, dtype=torch.int32) // 16
    values = unpack(tensors[".weight_packed"], 4)
    shuffled = torch.empty_like(values)
    shuffled[:, chosen] = values
    words = (shuffled[:, ::2] | shuffled[:, 1::2] << 4).view(torch.int32)
    tensors |= {".weight_packed": words, ".weight_g_idx": groups}
    found = read(tensors, WeightFormat("int4", 4, (1, 16)))
    assert found.order is not None
    assert torch.equal(found.dequantize()[:, chosen], value)


def test_mxfp4() -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
    weights |= {"scale_dtype": torch.uint8}
    tensors, value = library("mxfp4-pack-quantized", weights)
    found = read(tensors, WeightFormat("mxfp4", 4, (1, 32)))
    assert torch.equal(found.dequantize(), value)
    assert found.values.abs().max() == 12


def test_mxfp4_as_gpt_oss_stores_it() -> None:
    """Blocks [N, K / 32, 16] are weight_packed in another shape."""
    random = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (5, N, K // 32, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(100, 150, (5, N, K // 32), generator=random, dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [experts, K, N]
    for expert in range(5):
        tensors = {".weight_packed": blocks[expert].flatten(1), ".weight_scale": scales[expert]}
        found = read(tensors, WeightFormat("mxfp4", 4, (1, 32)))
        assert torch.equal(found.dequantize().T, theirs[expert])


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_fp8_checkpoints_have_scales_under_another_name(scale_dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(N, K, generator=random).to(torch.float8_e4m3fn)
    scales = (torch.rand(3, 2, generator=random) + 0.1).to(scale_dtype)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    tensors = {".weight": weight, ".weight_scale_inv": scales}
    found = read(tensors, WeightFormat("fp8", 8, (8, 32), is_packed=False))
    assert torch.equal(found.dequantize(), theirs)


def test_a_module_without_scales_is_not_quantised() -> None:
    tensors = stored("m", {".weight": torch.ones(N, K)})
    assert read_compressed(tensors, "m", (N, K), [WeightFormat("int8", 8, (1, 0), is_packed=False)]) is None


def test_broken_integers_are_refused_by_name() -> None:
    each = WeightFormat("int8", 8, (1, 0), is_symmetric=False, is_packed=False)
    tensors, _ = library("int-quantized", INT8 | ASYMMETRIC, inputs="int")
    refuse({**tensors, ".weight": tensors[".weight"].to(torch.uint8)}, each, "'m.weight' is torch.uint8")
    refuse({**tensors, ".weight": tensors[".weight"][1:]}, each, "'m.weight' has shape [23, 64]")
    refuse({**tensors, ".weight_scale": -tensors[".weight_scale"]}, each, "'m.weight_scale' holds scales")
    del tensors[".weight_zero_point"]
    refuse(tensors, each, "'m.weight_zero_point' is missing")


@pytest.mark.parametrize("name", [".weight", ".weight_zero_point"])
def test_integers_beyond_their_bits_are_refused(name: str) -> None:
    tensors, _ = library("int-quantized", INT8 | ASYMMETRIC | {"num_bits": 4}, inputs="int")
    each = WeightFormat("int4", 4, (1, 0), is_symmetric=False, is_packed=False)
    read(tensors, each)
    tensors[name][3] = 8
    refuse(tensors, each, f"'m{name}' holds values of more than 4 bits")


def test_fp8_that_are_not_numbers_are_refused() -> None:
    tensors, _ = library("float-quantized", FP8, inputs="float")
    tensors[".weight"].view(torch.uint8)[7, 5] = 0xFF
    each = WeightFormat("fp8", 8, (1, 0), is_packed=False)
    refuse(tensors, each, "'m.weight' holds values that are not numbers")
    refuse({**tensors, ".weight": tensors[".weight"].to(torch.float8_e5m2)}, each, "is torch.float8_e5m2")


@pytest.mark.parametrize("exponent", [240, 254, 255])
def test_mxfp4_scales_beyond_float32_are_refused(exponent: int) -> None:
    packed, scales = torch.zeros(N, K // 2, dtype=torch.uint8), torch.zeros(N, 2, dtype=torch.uint8)
    each = WeightFormat("mxfp4", 4, (1, 32))
    assert not read({".weight_packed": packed, ".weight_scale": scales}, each).dequantize().any()
    scales[0, 1] = exponent
    refuse({".weight_packed": packed, ".weight_scale": scales}, each, "'m.weight_scale' holds scales")


@pytest.mark.parametrize("shape", [[N, K + 1], [N], [2**40, 2**40], [[N, K]]])
def test_another_shape_of_packed_integers_is_refused(shape: list[int]) -> None:
    tensors, _ = library("pack-quantized", INT4)
    tensors[".weight_shape"] = torch.tensor(shape)
    refuse(tensors, WeightFormat("int4", 4, (1, 16)), "'m.weight_shape' is [")


def test_packed_integers_without_scales_are_refused() -> None:
    tensors, _ = library("pack-quantized", INT4)
    del tensors[".weight_scale"]
    refuse(tensors, WeightFormat("int4", 4, (1, 16)), "'m.weight_scale' is missing")
