from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.config import EngineConfig
from backend.engine.capacity import _default_bytes, num_pages_for, runner_facts
from backend.engine.runner_protocol import RunnerFacts
from backend.errors import CheckpointError
from backend.kv.storage import KVStorage
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


LONG, WINDOW = 8192, 512


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Gemma 3's five layers with a window for each without."""
    folder: Path = tmp_path_factory.mktemp("windowed")
    variant = next(v for v in VARIANTS if v.name == "gemma3")
    changes = {"num_hidden_layers": 6, "sliding_window": WINDOW, "max_position_embeddings": LONG}
    write_checkpoint(replace(variant, changes=variant.changes | changes), folder)
    model = load_model(EngineConfig(model="t", checkpoint=str(folder), device="cpu"))
    assert model.config.windows == (*(WINDOW,) * 5, None)
    return model


def split(model: LoadedModel, num_sequences: int, **changes: int) -> RunnerFacts:
    """With the memory of this number of sequences of 8,192 tokens in pages of all layers."""
    kv_cache_bytes = num_sequences * LONG // 16 * model.kv_layout.page_bytes
    config = config_of(Path(model.config.checkpoint), kv_cache_bytes=kv_cache_bytes, **changes)
    facts = runner_facts(config, model)
    layout = replace(model.kv_layout, device=torch.device("meta"))
    memory = KVStorage(layout, facts.num_pages, num_window_pages=facts.num_window_pages).memory
    assert kv_cache_bytes * 0.999 < sum(part.nbytes for part in memory) <= kv_cache_bytes
    return facts


@pytest.mark.parametrize(
    ("before", "max_running", "after"), [(10, 128, 22), (32, 128, 104), (32, 32, 64), (100, 128, 256)]
)
def test_long_sequences_that_fit(windowed: LoadedModel, before: int, max_running: int, after: int) -> None:
    facts = split(windowed, before, max_running=max_running)
    assert facts.num_window_pages is not None and facts.window == WINDOW
    per_sequence = WINDOW // 16 + 2
    assert min(facts.num_pages * 16 // LONG, facts.num_window_pages // per_sequence) == after
    # Shorter ones all fit that may run, or three quarters of those that did.
    is_enough = facts.num_window_pages >= 2 * max_running * per_sequence
    assert is_enough or facts.num_window_pages == before * LONG // 16 * 3 // 4


def test_memory_is_split_only_where_that_helps(
    checkpoint: Path, model: LoadedModel, windowed: LoadedModel
) -> None:
    assert runner_facts(config_of(checkpoint), model).num_window_pages is None
    assert split(windowed, 32, max_model_tokens=WINDOW).num_window_pages is None
    folder = Path(windowed.config.checkpoint)
    few = runner_facts(config_of(folder, kv_cache_bytes=88 * windowed.kv_layout.page_bytes), windowed)
    assert (few.num_pages, few.num_window_pages) == (88, None)  # three quarters are no two windows
    pages = {"max_running": 2, "max_batch_tokens": 64, "num_pages": 145}
    assert runner_facts(config_of(folder, **pages), windowed).num_window_pages == 2 * (2 * 34 + 4)
    assert runner_facts(config_of(folder, **pages | {"num_pages": 144}), windowed).num_window_pages is None


def test_drafters_keep_what_they_need_for_each_page(windowed: LoadedModel) -> None:
    page_bytes = windowed.kv_layout.page_bytes
    config = config_of(Path(windowed.config.checkpoint), kv_cache_bytes=4000 * page_bytes)
    facts = runner_facts(config, windowed, drafter_page_bytes=page_bytes)
    assert facts.num_window_pages == 1500 and facts.num_pages == 2000 + 500 * 5 // 7


def test_where_all_layers_have_windows_pages_are_as_many_as_can_be_used(tmp_path: Path) -> None:
    write_checkpoint(next(v for v in VARIANTS if v.name == "mistral-window"), tmp_path)
    model = load_model(EngineConfig(model="t", checkpoint=str(tmp_path), device="cpu"))
    config = config_of(tmp_path, kv_cache_bytes=40 * model.kv_layout.page_bytes, max_running=8)
    facts = runner_facts(config, model)
    assert (facts.num_window_pages, facts.num_pages, facts.max_model_tokens) == (40, 2 * 8 * 32, 512)


@pytest.mark.parametrize(
    ("free", "own", "left"),
    [
        (70, 16, 48),  # alone on the card
        (40, 16, 36),  # another has the rest, and a step needs memory too
        (20, 60, 4),  # weights leave little of the share
        (10, 66, None),  # weights leave nothing of the share
        (0, 16, None),
    ],
)
def test_a_gpu_is_shared_out(
    free: int,
    own: int,
    left: int | None,
    checkpoint: Path,
    model: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """80 bytes' worth, of which 0.85 are this engine's, in the unit of a page."""
    unit = model.kv_layout.page_bytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * unit, 80 * unit))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: own * unit)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    config = config_of(checkpoint)
    if left is None:
        with pytest.raises(CheckpointError, match="raise gpu_memory, lower max_batch_tokens, end what else"):
            _default_bytes(config, torch.device("cuda"))
    else:
        assert _default_bytes(config, torch.device("cuda")) == left * unit
        assert _default_bytes(config, torch.device("cuda"), unit) == (left + 4 - 1) * unit, "as measured"
