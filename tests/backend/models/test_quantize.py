"""Checkpoints rounded at load: what is rounded, kept, computed once, and how well it answers."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.config import EngineConfig, QuantizeConfig, RoundingScheme
from backend.errors import CheckpointError
from backend.kernels.linear.int8 import IS_AVAILABLE, Int8Weight
from backend.layers.gated_delta import GatedDeltaNet
from backend.layers.mlp import MLP
from backend.models import quantize
from backend.models.loaded import LoadedModel, load_model
from backend.quant.schemes import QuantizedWeight
from backend.tokenizer import Tokenizer
from tests.backend.models import quantized
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens

BY_NAME = {variant.name: variant for variant in VARIANTS}
PICO = Path(quantize.__file__).parents[1] / "pico" / "weights" / "pico-small"
PROMPTS = [f"What is {number} + {2 * number}?" for number in range(40)]


def load(folder: Path, scheme: RoundingScheme | None, calibration: str = "", kept: str = "") -> LoadedModel:
    rounding = scheme and QuantizeConfig(scheme=scheme, calibration=calibration, folder=kept)
    return load_model(EngineConfig(model="m", checkpoint=str(folder), device="cpu", quantize=rounding))


def logits(model: LoadedModel, tokens: list[int] | None = None) -> Tensor:
    track = Track(tokens or random_tokens(40, seed=1))
    return Driver(model).step([(track, len(track.tokens))])[0]


def prompts_file(folder: Path) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return str(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scheme", get_args(RoundingScheme))
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "qwen3-moe"])
def test_projections_are_rounded_and_nothing_else(
    tmp_path: Path, family: str, scheme: RoundingScheme, dtype: torch.dtype
) -> None:
    write_checkpoint(BY_NAME[family], tmp_path / "c", dtype)
    model = load(tmp_path / "c", scheme, kept=str(tmp_path / "kept"))
    (path,) = (tmp_path / "kept").glob("*.safetensors")
    projections = {
        name for name in load_file(tmp_path / "c" / "model.safetensors") if name.endswith("proj.weight")
    }
    assert projections == {name for name in load_file(path) if name.endswith(".weight")}
    again = load(tmp_path / "c", scheme, kept=str(tmp_path / "kept"))
    assert torch.equal(logits(again), logits(model))
    exact = logits(load(tmp_path / "c", None))
    limit = {"int8": 0.2, "fp8": 0.3, "int4": 0.8}[scheme] * exact.std()
    assert 0 < (logits(model) - exact).abs().mean() < limit


def test_progress_is_that_of_layers_also_while_weights_are_rounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer is read as it is stored, to be rounded, and rounded."""
    caplog.set_level(logging.INFO)
    seen: list[float] = []
    rounded: list[float] = []
    original = quantize.round_weight

    def spy(weight: Tensor, scheme: RoundingScheme, products: Tensor | None = None) -> QuantizedWeight:
        rounded.append(seen[-1])
        assert "rounding weights of model 'm' to int8, which may take minutes" in caplog.text
        return original(weight, scheme, products)

    monkeypatch.setattr(quantize, "round_weight", spy)
    config = QuantizeConfig(scheme="int8", calibration="", folder="")
    engine = EngineConfig(model="m", checkpoint=str(PICO), device="cpu", quantize=config)
    load_model(engine, seen.append)
    assert seen == sorted(seen) and seen[-1] == 1.0
    assert rounded[0] < 0.4 < 0.6 < rounded[-1] <= 1.0 and rounded[len(rounded) // 2] < 0.75


@pytest.mark.skipif(not IS_AVAILABLE, reason="needs AVX-512 VNNI")
def test_int8_computes_in_8_bits() -> None:
    model = load(PICO, "int8")
    for layer in model.decoder.layers:
        assert isinstance(layer.feed_forward, MLP)
        assert isinstance(layer.feed_forward.down.multiply, Int8Weight)
    assert not isinstance(model.decoder.head.multiply, Int8Weight)


@pytest.mark.parametrize("scheme", get_args(RoundingScheme))
def test_prompts_lessen_the_error(tmp_path: Path, scheme: RoundingScheme) -> None:
    """Errors that a layer's log shows are those of its output, also on prompts that it was not given."""
    calibration = prompts_file(tmp_path)
    tokens = [token for number in (61, 72, 83) for token in encode(f"What is {number} + {2 * number}?")]
    exact = logits(load(PICO, None), tokens)
    errors = [float((logits(load(PICO, scheme, path), tokens) - exact).norm()) for path in ("", calibration)]
    assert errors[1] < 0.9 * errors[0]


def encode(text: str) -> list[int]:
    return Tokenizer.from_checkpoint(PICO).encode(text)


def test_what_was_kept_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = prompts_file(tmp_path)
    first = load(PICO, "int4", calibration, str(tmp_path / "kept"))
    (path,) = (tmp_path / "kept").glob("*.safetensors")
    assert b"What" not in path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(quantize, "RoundingBuilder", None)
        second = load(PICO, "int4", calibration, str(tmp_path / "kept"))
    assert second.revision == first.revision == path.stem
    assert torch.equal(logits(second), logits(first))
    path.write_bytes(path.read_bytes()[:-100])  # damaged: computed again
    assert torch.equal(logits(load(PICO, "int4", calibration, str(tmp_path / "kept"))), logits(first))


def test_the_revision_tells_how_weights_are_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and cached answers are identified by it."""
    calibration = prompts_file(tmp_path)
    configs = [None, *(QuantizeConfig(scheme=scheme) for scheme in get_args(RoundingScheme))]
    configs += [QuantizeConfig(scheme="int4", calibration=calibration)]
    revisions = [quantize.served_revision(PICO, config) for config in configs]
    Path(calibration).write_text('"others"')
    revisions.append(quantize.served_revision(PICO, configs[-1]))
    monkeypatch.setattr(quantize, "_VERSION", quantize._VERSION + 1)
    revisions += [quantize.served_revision(PICO, config) for config in configs[1:]]
    assert len(set(revisions)) == len(revisions)


def test_the_log_says_how_weights_were_rounded_and_names_the_worst_layers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):  # the second start reads what the first has kept
        caplog.clear()
        load(PICO, "int4", kept=str(tmp_path))
        assert "served in int4, rounded to nearest, as quantize.calibration names no prompts" in caplog.text
        assert "error of layers' weights, worst first: layer 4 9.8" in caplog.text
    load(PICO, "int4", prompts_file(tmp_path))
    assert "rounded by GPTQ; relative error of layers' outputs, worst first: layer" in caplog.text
    assert PROMPTS[0] not in caplog.text


def test_quantised_checkpoints_are_refused(tmp_path: Path) -> None:
    rounded, _ = quantized.write_pair(BY_NAME["qwen3"], tmp_path, quantized.INT8, quantized.int8)
    with pytest.raises(CheckpointError, match="is quantised already .compressed-tensors.: remove `quantize`"):
        load(rounded, "int4")


def test_stacked_experts_are_refused(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["gpt-oss"], tmp_path)
    with pytest.raises(CheckpointError, match="has stacked experts, which `quantize` cannot round"):
        load(tmp_path, "int4")


def test_the_gates_of_a_state_are_not_rounded(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["qwen3.5"], tmp_path / "c")
    exact, model = load(tmp_path / "c", None), load(tmp_path / "c", "int4", kept=str(tmp_path / "kept"))
    (path,) = (tmp_path / "kept").glob("*.safetensors")
    rounded = {name.rpartition(".linear_attn.")[2] for name in load_file(path) if ".linear_attn." in name}
    assert {name.partition(".")[0] for name in rounded} == {"in_proj_qkv", "in_proj_z", "out_proj"}
    for own, other in zip(exact.decoder.layers, model.decoder.layers, strict=True):
        if isinstance(own.mixer, GatedDeltaNet) and isinstance(other.mixer, GatedDeltaNet):
            x = torch.randn(3, exact.config.hidden_size).to(exact.dtype)
            assert torch.equal(other.mixer.gates(x), own.mixer.gates(x))
            assert not torch.equal(other.mixer.inputs(x), own.mixer.inputs(x))


def test_layers_that_share_keys_are_rounded_without_prompts(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["gemma4"], tmp_path)
    exact, rounded = logits(load(tmp_path, None)), logits(load(tmp_path, "int8"))
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.2
    with pytest.raises(CheckpointError, match="cannot be computed layer by layer: remove `calibration`"):
        load(tmp_path, "int8", prompts_file(tmp_path))


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["qwen3"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"model.layers.1.mlp.up_proj.weight' holds numbers that are not"
    ):
        load(tmp_path, "int8")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("embed_tokens", float("inf"), "embed_tokens.weight' holds a number that is not finite"),
        ("layers.1.input_layernorm", 3e38, "proj.weight' gets inputs .* that are not finite"),
    ],
)
def test_inputs_that_are_no_numbers_are_refused(
    tmp_path: Path, name: str, value: float, message: str
) -> None:
    """They come from what is not rounded, so that no rounded weight shows them."""
    shutil.copytree(PICO, tmp_path / "c")
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    tensors[f"model.{name}.weight"][:] = value
    save_file(tensors, tmp_path / "c" / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "c", "int4", prompts_file(tmp_path))


def test_a_pipe_is_no_file_of_prompts(tmp_path: Path) -> None:
    """Opening one would wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CheckpointError, match=f"{path.name} cannot be read .not a file."):
            quantize.served_revision(PICO, QuantizeConfig(scheme="int8", calibration=str(path)))


def test_a_missing_file_of_prompts_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="quantize.calibration: .*none.txt cannot be read"):
        load(PICO, "int8", str(tmp_path / "none.txt"))
