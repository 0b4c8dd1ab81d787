"""Weights as compressed-tensors itself writes them are read as it reads them."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor

from backend.config import WeightFormat
from backend.errors import CheckpointError
from backend.quant.read_compressed import read_compressed
from tests.backend.quant.tensors import stored

N, K = 24, 64
INT8 = WeightFormat("int8", 8, (1, 0), is_packed=False)


def random_weight(seed: int = 0) -> Tensor:
    return torch.randn(N, K, generator=torch.Generator().manual_seed(seed))


def library(
    name: str, args: QuantizationArgs, scales: Tensor, zeros: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """What the library writes for a random weight, and what it reads from that."""
    inputs = QuantizationArgs(num_bits=8, type=args.type, dynamic=True, strategy="token")
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs)
    compressor = BaseCompressor.get_value_from_registry(name)
    state = {"weight": random_weight(), "weight_scale": scales}
    if zeros is not None:
        state["weight_zero_point"] = zeros
    written = compressor.compress(state, scheme)
    value = compressor.decompress(dict(written), scheme)["weight"]
    return {f".{key}": tensor for key, tensor in written.items()}, value


def channel_scales() -> Tensor:
    return random_weight().abs().amax(1, keepdim=True) / 127


def test_int8_channels() -> None:
    tensors, value = library(
        "int-quantized", QuantizationArgs(num_bits=8, strategy="channel"), channel_scales()
    )
    found = read_compressed(stored("m", tensors), "m", (N, K), [INT8])
    assert found is not None
    assert (found.scheme, found.block, found.zeros, found.order) == ("int8", (1, K), None, None)
    assert torch.equal(found.dequantize(), value)


def test_a_module_without_scales_is_not_quantised() -> None:
    assert read_compressed(stored("m", {".weight": random_weight()}), "m", (N, K), [INT8]) is None


def test_values_of_another_type_are_refused() -> None:
    tensors = {".weight": torch.zeros(N, K, dtype=torch.uint8), ".weight_scale": channel_scales()}
    with pytest.raises(CheckpointError, match=r"'m\.weight' is torch\.uint8"):
        read_compressed(stored("m", tensors), "m", (N, K), [INT8])
