"""Decode steps in static buffers, padded, on the CPU: a stand-in graph runs what was captured again."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from backend.config import EngineConfig, KVDtypeName
from backend.engine import runner as runner_module
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.graphs import Capture, padded_rows
from backend.engine.inputs import PreparedStep, prepare
from backend.engine.runner import ModelRunner
from backend.layers.step_input import StepInput
from backend.models.loaded import LoadedModel, load_model
from backend.types import Request, SamplingParams
from tests.backend.engine.driving import texts
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

NUM_PAGES = 24
MODELS: list[tuple[str, KVDtypeName]] = [
    ("qwen3", "auto"),
    ("mistral-window", "auto"),
    ("mixtral", "auto"),
    ("qwen3", "int8"),
    ("qwen3", "fp8"),
]


class StandInGraphs:
    """Captures a function by running it, and replays by running it again on the same buffers.

    Before each replay the step's own tensors are spoiled: a graph that read them would find other ones.
    """

    def __init__(self) -> None:
        self.num_replays = 0
        self.newest: PreparedStep | None = None

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        result = function()

        def replay() -> None:
            assert self.newest is not None
            step = self.newest.step_input
            own = step.on_device
            for tensor in (step.token_ids, step.slots, own.context_lens, own.rows, own.positions, own.order):
                tensor.fill_(1 << 30)
            own.query_starts.fill_(1 << 30)
            step.context_lens[:] = [1 << 30] * len(step.context_lens)
            result.fill_(torch.nan)
            self.num_replays += 1
            result.copy_(function())

        return result, replay


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    name, kv_dtype = request.param
    folder: Path = tmp_path_factory.mktemp(name)
    write_checkpoint(next(v for v in VARIANTS if v.name == name), folder)
    return load_model(msgspec.structs.replace(config_of(folder), kv_dtype=kv_dtype))


def config_of(folder: object) -> EngineConfig:
    return EngineConfig(
        model="t",
        checkpoint=str(folder),
        device="cpu",
        dtype="float32",
        max_running=11,
        max_batch_tokens=96,
        num_pages=NUM_PAGES,
        max_model_tokens=160,
    )


def new_engine(
    model: LoadedModel, folder: object, capture: Capture | None, *, is_ahead: bool = False
) -> tuple[Engine, ModelRunner]:
    config = config_of(folder)
    facts = dataclasses.replace(runner_facts(config, model), num_window_pages=None, window=0)
    storage = model.new_kv_storage(facts.num_pages + 1)
    runner = ModelRunner(model, storage, facts, config.max_running, None, is_ahead, capture)
    return Engine(config, runner), runner


def requests() -> list[Request]:
    """More than run at once, of several lengths, greedy and with seeds; some are preempted for memory."""
    return [
        Request(
            request_id=str(i),
            prompt_token_ids=[(7 * i + 3 * j) % 199 for j in range(3 + 5 * (i % 4))],
            params=SamplingParams(max_tokens=8 + 9 * (i % 5), temperature=float(i % 2), seed=i),
        )
        for i in range(14)
    ]


@pytest.fixture
def folder(model: LoadedModel, tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("is_ahead", [False, True])
def test_replayed_steps_draw_what_eager_ones_draw(
    model: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    wanted = texts(new_engine(model, folder, None, is_ahead=is_ahead)[0], requests())
    graphs = StandInGraphs()
    note_steps(monkeypatch, graphs)
    engine, runner = new_engine(model, folder, graphs, is_ahead=is_ahead)
    compare_steps(monkeypatch, model, runner)
    assert texts(engine, requests()) == wanted
    assert runner.graphs is not None
    keys = runner.graphs.keys
    assert {8, 16} <= {rows for rows, _ in keys} and len(keys) < 6
    assert graphs.num_replays > 4 * len(keys), "later steps reuse the graphs"
    padding = [numbers(layer[NUM_PAGES]) for layer in runner._storage.layers]
    assert all(page.any() for page in padding), "padding is in the last page"


def compare_steps(monkeypatch: pytest.MonkeyPatch, model: LoadedModel, runner: ModelRunner) -> None:
    """Run each step eagerly before it is replayed: hidden states and owned pages are the same."""
    graphs, storage = runner.graphs, runner._storage
    assert graphs is not None
    replayed = graphs.forward

    def checked(step: StepInput) -> Tensor | None:
        before = [layer.clone() for layer in storage.layers]
        wanted = model.forward(step.token_ids, model.open(step, storage))
        after = [layer.clone() for layer in storage.layers]
        for layer, old in zip(storage.layers, before, strict=True):
            layer.copy_(old)
        hidden = replayed(step)
        if hidden is not None:
            torch.testing.assert_close(hidden, wanted, rtol=0, atol=1e-5)
            for graph in graphs._graphs.values():  # a GPU reads what is on the device, a CPU the lists
                own_step, on_device = graph.step, graph.step.on_device
                assert on_device.rows.tolist() == own_step.rows
                assert on_device.context_lens.tolist() == own_step.context_lens
            for layer, own in zip(storage.layers, after, strict=True):
                found, right = numbers(layer[:NUM_PAGES]), numbers(own[:NUM_PAGES])
                torch.testing.assert_close(found, right, rtol=0, atol=1e-5)
        return hidden

    monkeypatch.setattr(graphs, "forward", checked)


def numbers(pages: Tensor) -> Tensor:
    """Bytes of those with 8 bits: torch compares no float8."""
    return pages.view(torch.uint8) if pages.dtype.itemsize == 1 else pages


def note_steps(monkeypatch: pytest.MonkeyPatch, graphs: StandInGraphs) -> None:
    """Tell `graphs` of each step that the runner prepares."""

    def noted(*arguments: object) -> PreparedStep:
        graphs.newest = prepare(*arguments)  # type: ignore[arg-type]
        return graphs.newest

    monkeypatch.setattr(runner_module, "prepare", noted)


def test_steps_are_eager_where_a_graph_cannot_be_captured(
    model: LoadedModel, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def refuse(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        nonlocal calls
        calls += 1
        raise RuntimeError("no memory")

    wanted = texts(new_engine(model, folder, None)[0], requests())
    with caplog.at_level(logging.WARNING):
        assert texts(new_engine(model, folder, refuse)[0], requests()) == wanted
    assert calls == 1
    assert [r.getMessage() for r in caplog.records] == [
        "decode steps run without CUDA graphs, as one cannot be captured: no memory"
    ]


def test_padded_rows() -> None:
    assert [padded_rows(n) for n in (1, 2, 3, 5, 8, 9, 16, 17)] == [1, 2, 4, 8, 8, 16, 16, 24]
