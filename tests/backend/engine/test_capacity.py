from __future__ import annotations

import logging
from pathlib import Path

import pytest

from backend.config import EngineConfig
from backend.engine.capacity import num_pages_for, runner_facts
from backend.errors import CheckpointError
from backend.models.loaded import LoadedModel, load_model
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("capacity")
    write_checkpoint(next(v for v in VARIANTS if v.name == "qwen3"), folder)
    return folder


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> LoadedModel:
    return load_model(EngineConfig(model="t", checkpoint=str(checkpoint), device="cpu"))


def config_of(checkpoint: Path, **changes: int) -> EngineConfig:
    return EngineConfig(model="t", checkpoint=str(checkpoint), device="cpu", **changes)  # type: ignore[arg-type]


def test_pages_follow_the_configuration(checkpoint: Path, model: LoadedModel) -> None:
    page_bytes = model.kv_layout.page_bytes
    assert num_pages_for(config_of(checkpoint, num_pages=7), model) == 7
    assert num_pages_for(config_of(checkpoint, kv_cache_bytes=10 * page_bytes + 1), model) == 10
    assert num_pages_for(config_of(checkpoint, kv_cache_bytes=10 * page_bytes), model, page_bytes) == 5
    # A tiny model does not take a share of memory that it can never use: twice 2 sequences of 512 tokens.
    assert num_pages_for(config_of(checkpoint, max_running=2), model) == 2 * 2 * 512 // 16
    with pytest.raises(CheckpointError, match="kv_cache_bytes"):
        num_pages_for(config_of(checkpoint, kv_cache_bytes=page_bytes - 1), model)


def test_context_is_bounded_by_checkpoint_and_memory(checkpoint: Path, model: LoadedModel) -> None:
    assert runner_facts(config_of(checkpoint, num_pages=4), model).max_model_tokens == 64
    assert runner_facts(config_of(checkpoint, max_model_tokens=100), model).max_model_tokens == 100
    with pytest.raises(CheckpointError, match="512"):
        runner_facts(config_of(checkpoint, max_model_tokens=513), model)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"num_pages": 4, "max_model_tokens": 100},
            "64 tokens, not 100 as max_model_tokens says|raise num_pages",
        ),
        ({"num_pages": 4}, "64 tokens, not 512 as the checkpoint's maximum says|raise num_pages"),
        (
            {"kv_cache_bytes": 3, "max_model_tokens": 49},
            "48 tokens, not 49 as max_model_tokens|kv_cache_bytes",
        ),
        ({"num_pages": 7, "max_model_tokens": 112}, ""),
        ({"num_pages": 32}, ""),
    ],
)
def test_a_context_that_memory_lowers_is_logged(
    checkpoint: Path,
    model: LoadedModel,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, int],
    said: str,
) -> None:
    if "kv_cache_bytes" in changes:
        changes = changes | {"kv_cache_bytes": changes["kv_cache_bytes"] * model.kv_layout.page_bytes}
    with caplog.at_level(logging.WARNING):
        runner_facts(config_of(checkpoint, **changes), model)
    assert len(caplog.records) == bool(said)
    for part in said.split("|"):
        assert part in caplog.text
