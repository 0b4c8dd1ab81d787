"""Quantised checkpoints: their configuration, and models that compute as their weights in floats would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.models.loaded import LoadedModel, load_model
from tests.backend.models.checkpoints import VARIANTS
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.quantized import write_pair

BY_NAME = {variant.name: variant for variant in VARIANTS}
FAMILIES = ("qwen3", "mixtral", "qwen3-moe", "qwen2")


def compressed(
    weights: dict[str, object], stored: str, inputs: dict[str, object] | None = None
) -> dict[str, object]:
    """The quantization_config of compressed-tensors for one group of modules."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": stored, "config_groups": {"group_0": group}}


INT8 = compressed(
    {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None},
    "int-quantized",
    {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"},
)


def channel_int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scales = weight.abs().amax(1, keepdim=True) / 127
    values = (weight / scales).round().clamp(-128, 127)
    return {".weight": values.to(torch.int8), ".weight_scale": scales}, values * scales


def logits(folder: Path) -> Tensor:
    model: LoadedModel = load_model(EngineConfig(model="m", checkpoint=str(folder), device="cpu"))
    driver, track = Driver(model), Track(random_tokens(40, seed=1))
    return torch.cat([driver.step([(track, count)])[0] for count in (30, 1, 9)])


@pytest.mark.parametrize("family", FAMILIES)
def test_int8(tmp_path: Path, family: str) -> None:
    quantized, plain = write_pair(BY_NAME[family], tmp_path, INT8, channel_int8)
    exact = logits(plain)
    assert (logits(quantized) - exact).abs().mean() < 0.03 * exact.std()
