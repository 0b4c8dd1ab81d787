"""Gemma 3 with images: its section of config.json, and which of its tensors are the decoder's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import EngineConfig, ModelConfig
from backend.errors import CheckpointError
from backend.models.checkpoint_config import read_model_config
from backend.models.loaded import LoadedModel, load_model
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.families.configs import SHAPE, read

NAME = "Gemma3ForConditionalGeneration"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}


def nested(directory: Path, inner: Mapping[str, object], **outer: object) -> ModelConfig:
    raw = {"architectures": [NAME], **outer, "text_config": {**SHAPE, **inner}}
    (directory / "config.json").write_text(json.dumps(raw))
    return read_model_config(directory)


def test_layers_are_those_of_the_decoder_alone(tmp_path: Path) -> None:
    changes = {"sliding_window": 9, "sliding_window_pattern": 2, "head_dim": 16}
    alone = read(tmp_path, "Gemma3ForCausalLM", **changes)
    assert nested(tmp_path, changes).layers == alone.layers
    assert nested(tmp_path, changes).scalars == alone.scalars


@pytest.mark.parametrize("place", ["inner", "outer"])
def test_keys_on_either_side(tmp_path: Path, place: str) -> None:
    found: dict[str, object] = {"tie_word_embeddings": False, "quantization_config": GPTQ}
    config = nested(tmp_path, found) if place == "inner" else nested(tmp_path, {}, **found)
    assert not config.tie_word_embeddings
    assert config.quantization is not None and config.quantization.method == "gptq"


def test_the_outer_switch_ties_the_head(tmp_path: Path) -> None:
    assert not nested(tmp_path, {"tie_word_embeddings": True}, tie_word_embeddings=False).tie_word_embeddings


@pytest.mark.parametrize("wrong", [None, [], "gemma3_text"])
def test_no_section(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(CheckpointError, match="'text_config' is .*expected an object"):
        read(tmp_path, NAME, text_config=wrong)


@pytest.mark.parametrize("wrong", ["llama", 3])
def test_another_decoder(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(CheckpointError, match=r"'text_config.model_type' .*only 'gemma3_text'"):
        nested(tmp_path, {"model_type": wrong})


@pytest.mark.parametrize(
    ("key", "outside"),
    [("hidden_size", 128), ("vocab_size", 7), ("head_dim", 8), ("quantization_config", {**GPTQ, "bits": 8})],
)
def test_two_values(tmp_path: Path, key: str, outside: object) -> None:
    inner = {"head_dim": 16, "quantization_config": GPTQ}
    with pytest.raises(CheckpointError, match=f"config.json: '{key}' is .*as in 'text_config'"):
        nested(tmp_path, inner, **{key: outside})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_checkpoint(next(each for each in VARIANTS if each.name == "gemma3-nested-untied"), folder)
    return folder


def load(source: Path, directory: Path, tensors: dict[str, torch.Tensor]) -> LoadedModel:
    (directory / "config.json").write_text((source / "config.json").read_text())
    save_file(tensors, directory / "model.safetensors")
    return load_model(EngineConfig(model="m", checkpoint=str(directory), device="cpu"))


def logits(model: LoadedModel) -> torch.Tensor:
    return Driver(model).step([(Track(random_tokens(20, seed=1)), 20)])[0]


def test_names_of_both_formats(tmp_path: Path, written: Path) -> None:
    old = load_file(written / "model.safetensors")
    assert (
        "language_model.model.layers.0.mlp.up_proj.weight" in old and "language_model.lm_head.weight" in old
    )
    expected = logits(load(written, tmp_path, old))
    new = {
        (
            "lm_head.weight"
            if name == "language_model.lm_head.weight"
            else name.replace("language_model.model", "model.language_model", 1)
            if name.startswith("language_model.")
            else f"model.{name}"
        ): tensor
        for name, tensor in old.items()
    }
    assert torch.equal(logits(load(written, tmp_path, new)), expected)


@pytest.mark.parametrize(
    "name",
    [
        "audio_tower.weight",
        "model.layers.9.mlp.up_proj.weight",
        "language_model.model.layers.0.mlp.up_proj.bias",
    ],
)
def test_a_left_over_tensor(tmp_path: Path, written: Path, name: str) -> None:
    tensors = load_file(written / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"model.safetensors: '{name}' is a tensor that the arch"):
        load(written, tmp_path, tensors | {name: torch.ones(2)})


def test_a_missing_tensor(tmp_path: Path, written: Path) -> None:
    tensors = load_file(written / "model.safetensors")
    del tensors["language_model.model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"no tensor 'model.layers.1.mlp.up_proj.weight'"):
        load(written, tmp_path, tensors)


def test_one_tensor_under_two_names(tmp_path: Path, written: Path) -> None:
    tensors = load_file(written / "model.safetensors")
    twice: dict[str, Any] = {"model.language_model.norm.weight": torch.ones(64)}
    with pytest.raises(CheckpointError, match="is the same tensor as"):
        load(written, tmp_path, tensors | twice)
