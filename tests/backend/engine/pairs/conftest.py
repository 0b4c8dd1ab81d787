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
from tests.backend.engine.pairs.stage import ADAPTERS, BFLOAT16, FLOAT32, HYBRID, PICO_SMALL, WEIGHTS, Stage
from tests.backend.lora.making import Recipe, write_adapter
from tests.backend.models.checkpoints import DELTA, Variant, write_checkpoint


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
    tokenizer = Tokenizer.from_checkpoint(WEIGHTS / PICO_SMALL)
    shape = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 512, "initializer_range": 0.2}
    write_checkpoint(Variant(HYBRID, "qwen3_5_text", DELTA | shape), folder / HYBRID)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(WEIGHTS / PICO_SMALL / name, folder / HYBRID)
    model = load_model(
        EngineConfig(model="t", checkpoint=str(folder / HYBRID), device="cpu", dtype="float32")
    )
    ends: tuple[tuple[str, ...], ...] = (("in_proj_qkv", "in_proj_z"), ("in_proj_a", "in_proj_b"), ())
    for number, (name, own) in enumerate(zip(ADAPTERS[HYBRID], ends, strict=True)):
        write_adapter(folder / "adapters" / name, model, Recipe(ends=own, size=3.0, seed=number))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "CHECKPOINT_TOKENS", 16)
        patch.setattr(checkpoints, "INTERVAL_TOKENS", 32)
        stage = Stage(HYBRID, FLOAT32, folder)
        yield stage
        stage.close()
