"""What 16-bit weights are computed in: on a CPU what it multiplies fastest, on a GPU what it computes in."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from backend.config import DtypeName, EngineConfig, KVDtypeName, ModelConfig
from backend.errors import CheckpointError
from backend.kernels.linear import paired
from backend.models import precision
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


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("architecture", "stored", "has_bfloat16", "compute", "warning"),
    [
        ("LlamaForCausalLM", F32, True, F32, ""),
        ("LlamaForCausalLM", BF16, True, BF16, ""),
        ("LlamaForCausalLM", F16, True, F16, ""),
        ("LlamaForCausalLM", F16, False, F16, ""),
        ("LlamaForCausalLM", BF16, False, F16, "'m' is computed in float16: its GPU does not compute in bf"),
        ("Gemma2ForCausalLM", F16, True, BF16, ""),
        ("Gemma3ForConditionalGeneration", BF16, False, F32, "in float32.*numbers beyond float16's"),
    ],
)
def test_a_gpu_computes_in_what_is_stored_or_the_next_best(
    *,
    architecture: str,
    stored: torch.dtype,
    has_bfloat16: bool,
    compute: torch.dtype,
    warning: str,
    model: ModelConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _pretend_gpu(monkeypatch, has_bfloat16=has_bfloat16)
    config = EngineConfig(model="m", checkpoint=CHECKPOINT)
    with caplog.at_level(logging.WARNING, logger="backend.models.precision"):
        found = choose_precision(config, replace(model, architecture=architecture), stored)
    assert (found.device.type, found.compute, found.kv) == ("cuda", compute, compute)
    assert found.weights == "plain"
    assert re.search(warning, caplog.text) if warning else not caplog.records


@pytest.mark.parametrize(("dtype", "compute"), [("float32", F32), ("bfloat16", BF16)])
def test_a_configured_dtype_is_what_a_gpu_computes_in(
    dtype: DtypeName, compute: torch.dtype, model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(model="m", checkpoint=CHECKPOINT, dtype=dtype)
    _pretend_gpu(monkeypatch, has_bfloat16=True)
    for stored in (F32, F16, BF16):
        assert choose_precision(config, model, stored).compute is compute
    _pretend_gpu(monkeypatch, has_bfloat16=False)
    if compute is BF16:
        with pytest.raises(
            CheckpointError, match="'m' is configured for dtype 'bfloat16', .* leave dtype out"
        ):
            choose_precision(config, model, BF16)
    else:
        assert choose_precision(config, model, BF16).compute is F32


@pytest.mark.parametrize(
    ("device", "driver", "is_told"),
    [("auto", "there", True), ("cpu", "there", False), ("auto", "not", False)],
)
def test_a_build_of_torch_that_finds_no_gpu_is_told(
    device: str,
    driver: str,
    is_told: bool,
    model: ModelConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "there").touch()
    monkeypatch.setattr(precision, "DRIVERS", (tmp_path / driver,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = EngineConfig(model="m", checkpoint=CHECKPOINT, device=device)
    assert choose_precision(config, model, BF16).device.type == "cpu"
    assert ("a GPU's driver is here, but torch" in caplog.text) is is_told


def _pretend_gpu(monkeypatch: pytest.MonkeyPatch, *, has_bfloat16: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_bfloat16
    )
