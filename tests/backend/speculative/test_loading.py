from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import EngineConfig, SpeculativeConfig
from backend.errors import CheckpointError
from backend.models import LoadedModel, load_model
from backend.pico.recipe import WEIGHTS
from backend.speculative.compiled_mixture import CompiledMixture
from backend.speculative.loading import load_drafters
from backend.speculative.mixture_loading import load_mixture
from backend.speculative.weights_check import HEADS
from tests.backend.speculative.head_cases import make_pair
from tests.backend.speculative.model_targets import load, write_model


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


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_for_one_target(target: LoadedModel, tmp_path: Path, name: str) -> None:
    pair = make_pair(tmp_path, name, "qwen3", seed=9)
    loaded = load_drafters(config(pair.model, {name: pair.folder}), pair.model)
    assert loaded.page_bytes > 0 and loaded.open(pair.model.new_kv_storage(2)).observers
    with pytest.raises(
        CheckpointError, match=r"was trained for weights.*train it anew for these, or restore"
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


def test_a_head_whose_queries_share_no_keys_evenly_is_refused(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "eagle", "qwen3")
    path = pair.folder / "config.json"
    path.write_text(path.read_text().replace('"num_key_value_heads": 2', '"num_key_value_heads": 3'))
    with pytest.raises(
        CheckpointError, match=r"'num_attention_heads' 4 is no multiple of 'num_key_value_heads' 3"
    ):
        load_drafters(config(pair.model, {"eagle": pair.folder}), pair.model)


def test_the_shipped_mixture_of_attentions_drafts_in_one_call() -> None:
    folder = WEIGHTS / "pico-large"
    model = load_model(EngineConfig(model="t", checkpoint=str(folder), device="cpu"))
    head = load_mixture(str(folder / "heads" / "mixture_of_attentions"), model, 64, 72)
    assert isinstance(head, CompiledMixture)
