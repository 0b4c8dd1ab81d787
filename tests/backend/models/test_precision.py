"""What 16-bit weights are computed in on a CPU depends on what it multiplies fastest."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from backend.config import EngineConfig, KVDtypeName, ModelConfig
from backend.kernels.linear import paired
from backend.models.checkpoint_config import read_model_config
from backend.models.precision import choose_precision
from backend.pico.export import WEIGHTS

CHECKPOINT = str(WEIGHTS / "pico-small")


@pytest.fixture
def model() -> ModelConfig:
    return read_model_config(CHECKPOINT)


@pytest.mark.parametrize(
    ("is_available", "hidden_size", "weights"),
    [(True, 256, "half"), (True, 1024, "bf16"), (False, 1024, "half")],
)
def test_products_round_their_input_in_large_models_where_the_processor_multiplies_that(
    *,
    is_available: bool,
    hidden_size: int,
    weights: str,
    model: ModelConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paired, "is_available", lambda: is_available)
    config = EngineConfig(model="m", checkpoint=CHECKPOINT, device="cpu")
    model = replace(model, hidden_size=hidden_size)
    found = choose_precision(config, model, torch.bfloat16)
    assert (found.compute, found.weights) == (torch.float32, weights)


def test_float32_is_never_computed_more_coarsely(model: ModelConfig) -> None:
    config = EngineConfig(model="m", checkpoint=CHECKPOINT, device="cpu")
    assert choose_precision(config, model, torch.float32).compute is torch.float32


@pytest.mark.parametrize(
    ("name", "dtype"), [("bfloat16", torch.bfloat16), ("int8", torch.int8), ("fp8", torch.float8_e4m3fn)]
)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_keys_and_values_have_the_dtype_that_is_asked_for(
    name: KVDtypeName, dtype: torch.dtype, stored: torch.dtype, model: ModelConfig
) -> None:
    config = EngineConfig(model="m", checkpoint=CHECKPOINT, device="cpu")
    plain = choose_precision(config, model, stored)
    found = choose_precision(msgspec.structs.replace(config, kv_dtype=name), model, stored)
    assert found == replace(plain, kv=dtype)
