from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.config import EngineConfig, SpeculativeConfig
from backend.errors import CheckpointError
from backend.models.loaded import LoadedModel, load_model
from backend.pico.recipe import WEIGHTS
from backend.speculative.draft_model import load_draft_model
from backend.speculative.eagle import load_eagle
from backend.speculative.loading import load_drafters
from backend.speculative.mixture_of_attentions import load_mixture
from backend.speculative.rollout import compiled_precision
from backend.speculative.weights_check import DRAFT_MODEL, HEADS, check_folder
from tests.backend.models import quantized as formats
from tests.backend.models.quantized import quantize
from tests.backend.speculative.head_cases import make_pair
from tests.backend.speculative.model_targets import VOCAB, load, write_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("target")
    write_model(folder, "qwen3")
    return load(folder)


def config(model: LoadedModel, folders: dict[str, Path], drafter: str = "none") -> EngineConfig:
    speculative = SpeculativeConfig(drafter=drafter, folders={k: str(v) for k, v in folders.items()})
    return EngineConfig(
        model="t", checkpoint=model.config.checkpoint, device="cpu", dtype="float32", speculative=speculative
    )


def test_nothing_is_loaded_unless_named(target: LoadedModel) -> None:
    assert load_drafters(config(target, {}), target).each == []
    with pytest.raises(CheckpointError, match=r"'draft_model' of model 't' needs weights; name their folder"):
        load_drafters(config(target, {}, "draft_model"), target)


def test_a_draft_model_asks_for_memory(target: LoadedModel, tmp_path: Path) -> None:
    write_model(tmp_path, "qwen3", num_hidden_layers=1)
    loaded = load_drafters(config(target, {"draft_model": tmp_path}), target)
    assert loaded.page_bytes == target.kv_layout.page_bytes // 3
    opened = loaded.open(target.new_kv_storage(2))
    assert [drafter.name for drafter in opened.drafters] == ["draft_model"]
    assert not opened.observers


def test_a_draft_model_may_be_quantised(target: LoadedModel, tmp_path: Path) -> None:
    write_model(tmp_path / "plain", "qwen3", num_hidden_layers=1)
    quantized, plain = quantize(tmp_path / "plain", formats.GPTQ, formats.gptq)
    found, expected = (
        load_draft_model(config(target, {}), str(each), 64).chain for each in (quantized, plain)
    )
    assert found is not None and expected is not None
    assert np.array_equal(found.layers.qkv, expected.layers.qkv)
    assert np.array_equal(found.layers.down, expected.layers.down)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_for_one_target(target: LoadedModel, tmp_path: Path, name: str) -> None:
    pair = make_pair(tmp_path, name, "qwen3", seed=9)
    loaded = load_drafters(config(pair.model, {name: pair.folder}), pair.model)
    assert loaded.page_bytes > 0 and loaded.open(pair.model.new_kv_storage(2)).observers
    with pytest.raises(
        CheckpointError, match=r"was trained for weights.*train it again for these, or restore"
    ):
        load_drafters(config(target, {name: pair.folder}), target)
    other = next(each for each in HEADS if each != name)
    with pytest.raises(CheckpointError, match=f"is one of '{name}'; give the folder of a {other} head"):
        load_drafters(config(pair.model, {other: pair.folder}), pair.model)


def test_folders_that_cannot_serve_are_refused(target: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'ngram' takes no weights"):
        load_drafters(config(target, {"ngram": tmp_path}), target)
    with pytest.raises(CheckpointError, match=r"config\.json does not exist; give the folder"):
        load_drafters(config(target, {"draft_model": tmp_path}), target)
    write_model(tmp_path / "moe")
    with pytest.raises(CheckpointError, match="is a mixture of experts; choose a dense model"):
        load_drafters(config(target, {"draft_model": tmp_path / "moe"}), target)
    write_model(tmp_path / "window", "mistral", sliding_window=20)
    with pytest.raises(CheckpointError, match="sliding window of 20 tokens; choose a model without"):
        load_drafters(config(target, {"draft_model": tmp_path / "window"}), target)
    write_model(tmp_path / "other", "qwen3", vocab_size=12)
    with pytest.raises(CheckpointError, match="vocabulary of 12 tokens"):
        load_drafters(config(target, {"draft_model": tmp_path / "other"}), target)


def test_a_vocabulary_may_be_that_of_one_part_of_the_target(tmp_path: Path) -> None:
    for name, raw in (("nested", {"text_config": {"vocab_size": 9}}), ("same", {"vocab_size": 9})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(raw))
    check_folder(DRAFT_MODEL, tmp_path / "nested", tmp_path / "same")
    (tmp_path / "same" / "config.json").write_text('{"vocab_size": 8}')
    with pytest.raises(CheckpointError, match="vocabulary of 8 tokens, .* one of 9"):
        check_folder(DRAFT_MODEL, tmp_path / "nested", tmp_path / "same")


def test_a_head_whose_queries_share_no_keys_evenly_is_refused(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "eagle", "qwen3")
    path = pair.folder / "config.json"
    path.write_text(path.read_text().replace('"num_key_value_heads": 2', '"num_key_value_heads": 3'))
    with pytest.raises(
        CheckpointError, match=r"'num_attention_heads' 4 is no multiple of 'num_key_value_heads' 3"
    ):
        load_drafters(config(pair.model, {"eagle": pair.folder}), pair.model)


def test_the_shipped_drafters_draft_in_one_call() -> None:
    folder = WEIGHTS / "pico-large"
    model = load_model(EngineConfig(model="t", checkpoint=str(folder), device="cpu"))
    config = EngineConfig(model="t", checkpoint=str(folder), device="cpu", max_model_tokens=64)
    for load_head, name in ((load_eagle, "eagle"), (load_mixture, "mixture_of_attentions")):
        assert load_head(config, model, str(folder / "heads" / name)).chain is not None
    assert load_draft_model(config, str(WEIGHTS / "pico-draft"), 64).chain is not None


def test_large_networks_and_other_devices_are_left_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(tmp_path, "eagle", "qwen3")
    shape = pair.drafter.config
    width, heads = shape.hidden_size, 2 * (shape.num_attention_heads + shape.num_key_value_heads)
    num_elements = width * (heads * shape.head_dim + 3 * shape.intermediate_size + width + VOCAB)
    for most, compiles in ((num_elements, True), (num_elements - 1, False)):
        monkeypatch.setattr("backend.speculative.rollout.MAX_COMPILED_ELEMENTS", most)
        network = load_eagle(config(pair.model, {}), pair.model, str(pair.folder))
        assert (network.chain is not None) == compiles
    precision = pair.model.precision
    assert compiled_precision(precision, 1)
    assert not compiled_precision(replace(precision, compute=torch.bfloat16), 1)
    assert not compiled_precision(replace(precision, device=torch.device("cuda")), 1)
