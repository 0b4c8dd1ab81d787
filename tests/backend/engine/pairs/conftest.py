from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from backend.config import EngineConfig
from backend.kv import checkpoints
from backend.models.loaded import load_model
from backend.speculative import tree
from backend.tokenizer import Tokenizer
from tests.backend.engine.pairs.stage import (
    ADAPTERS,
    BFLOAT16,
    FLOAT32,
    HYBRID,
    LATENT,
    PICO_SMALL,
    WEIGHTS,
    Stage,
)
from tests.backend.lora.making import Recipe, write_adapter
from tests.backend.models.checkpoints import DELTA, LATENT_GROUPS, Variant, write_checkpoint


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out of the default run what repeats a cell of float32.

    Rounded sums and latents meet the features that choose the rows, weights or pages of a step. States are
    touched by what those do to a sequence as well, so that one such feature is enough. Steps that are
    launched ahead differ in when they are read alone.
    """
    for item in items:
        cell = item.callspec.params if hasattr(item, "callspec") else {}
        features = cell.get("features")
        if not isinstance(features, tuple):
            continue
        are_any_models = [feature.is_any_models for feature in features]
        is_other = cell.get("stage_of") is BFLOAT16 or "latent" in item.fixturenames
        if cell.get("stage_of") is BFLOAT16 and "before" in item.name:
            item.add_marker(pytest.mark.slow)
        if all(are_any_models) if "hybrid" in item.fixturenames else is_other and any(are_any_models):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package", params=[FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
def stage_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Stage]]:
    """The stage of a model, made when it is first asked for; plain answers last for the whole matrix."""
    dtypes: Mapping[str, object] = request.param
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    stages: dict[str, Stage] = {}
    patch = pytest.MonkeyPatch()
    patch.setattr(tree, "MIN_NODE_LOGPROB", -math.inf)  # trees branch, however sure of themselves heads are

    def find(model: str) -> Stage:
        if model not in stages:
            stages[model] = Stage(model, dtypes)
        return stages[model]

    yield find
    for stage in stages.values():
        stage.close()
    patch.undo()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A tiny random model with recurrent states, which knows pico's tokens; checkpoints at every page."""
    folder: Path = tmp_path_factory.mktemp("hybrid")
    ends = (("in_proj_qkv", "in_proj_z"), ("in_proj_a", "in_proj_b"), ())
    _write_tiny(folder, Variant(HYBRID, "qwen3_5_text", DELTA), ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "CHECKPOINT_TOKENS", 16)
        patch.setattr(checkpoints, "INTERVAL_TOKENS", 32)
        stage = Stage(HYBRID, FLOAT32, folder)
        yield stage
        stage.close()


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A tiny random model with latent attention, which knows pico's tokens."""
    folder: Path = tmp_path_factory.mktemp("latent")
    ends = (("q_a_proj", "kv_a_proj_with_mqa"), ("q_b_proj", "o_proj"), ())
    _write_tiny(folder, Variant(LATENT, "deepseek_v3", LATENT_GROUPS), ends)
    stage = Stage(LATENT, FLOAT32, folder)
    yield stage
    stage.close()


def _write_tiny(folder: Path, variant: Variant, ends: tuple[tuple[str, ...], ...]) -> None:
    """The model and its adapters, which change the modules with these `ends`."""
    tokenizer, own = Tokenizer.from_checkpoint(WEIGHTS / PICO_SMALL), folder / variant.name
    shape = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 512, "initializer_range": 0.2}
    write_checkpoint(Variant(variant.name, variant.model_type, variant.changes | shape), own)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(WEIGHTS / PICO_SMALL / name, own)
    model = load_model(EngineConfig(model="t", checkpoint=str(own), device="cpu", dtype="float32"))
    for number, (name, changed) in enumerate(zip(ADAPTERS[variant.name], ends, strict=True)):
        write_adapter(folder / "adapters" / name, model, Recipe(ends=changed, size=3.0, seed=number))
