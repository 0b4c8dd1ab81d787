"""Decode steps in static buffers, padded, on the CPU: a stand-in graph runs what was captured again."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from backend.config import EngineConfig, KVDtypeName, SpeculativeConfig
from backend.engine import runner as runner_module
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.graph_buffers import Key
from backend.engine.graphs import CudaCapture
from backend.engine.inputs import PreparedStep, prepare
from backend.engine.runner import ModelRunner
from backend.kernels.graph_keys import Capture
from backend.kernels.lora import AdapterRows
from backend.layers.linear import Linear
from backend.layers.step_input import StepInput
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel, load_model
from backend.speculative.drafter import Drafter
from backend.types import Draft, Request, SamplingParams, Sequence
from tests.backend.engine.driving import run, texts
from tests.backend.lora.making import Recipe, make_store, write_adapter
from tests.backend.models.checkpoints import VARIANTS, Variant, write_checkpoint
from tests.backend.speculative.drafters import GuessingDrafter

NUM_PAGES, MOST_DRAFTED = 24, 5
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
        self.num_captures = self.num_replays = 0
        self.newest: PreparedStep | None = None
        self.linears: list[Linear] = []  # whose memory for adapters a replay must find where it was

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        result, memory = function(), [linear.adapters for linear in self.linears]
        self.num_captures += 1

        def replay() -> None:
            assert self.newest is not None
            step = self.newest.step_input
            assert step.adapters is None or [linear.adapters for linear in self.linears] == memory
            own = step.on_device
            for tensor in (step.token_ids, step.slots, own.context_lens, own.rows, own.positions, own.order):
                tensor.fill_(1 << 30)
            own.query_starts.fill_(1 << 30)
            for numbers in (step.query_lens, step.context_lens, step.rows):
                numbers[:] = [1 << 30] * len(numbers)
            result.fill_(torch.nan)
            self.num_replays += 1
            with spoiled(step.adapters):
                result.copy_(function())

        return result, replay


@contextmanager
def spoiled(rows: AdapterRows | None) -> Iterator[None]:
    """Other slots than a step's own, until the logits are computed from them, eagerly."""
    if rows is None:
        yield
        return
    own = [torch.from_numpy(rows.slots), rows.on_device.slots, rows.on_device.active]
    kept = [tensor.clone() for tensor in own]
    for tensor in own:
        tensor.fill_(1 << 30)
    yield
    for tensor, values in zip(own, kept, strict=True):
        tensor.copy_(values)


class VariedDrafter(GuessingDrafter):
    """Drafts are longer from step to step, up to the most, then shorter again."""

    num_calls = 0

    def propose(self, sequences: list[Sequence], ks: list[int]) -> Iterable[Draft]:
        self.num_calls += 1
        longest = self.num_calls % (MOST_DRAFTED + 1)
        return super().propose(sequences, [min(k, longest) for k in ks])


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
    model: LoadedModel,
    folder: object,
    capture: Capture | None,
    drafter: Drafter | None = None,
    store: AdapterStore | None = None,
    *,
    is_ahead: bool = False,
) -> tuple[Engine, ModelRunner]:
    config = config_of(folder)
    facts = dataclasses.replace(runner_facts(config, model), num_window_pages=None, window=0)
    storage = model.new_kv_storage(facts.num_pages + 1)
    runner = ModelRunner(model, storage, facts, config.max_running, store, is_ahead, capture)
    if drafter is None:
        return Engine(config, runner, adapters=store), runner
    speculative = SpeculativeConfig(drafter=drafter.name, max_tokens=MOST_DRAFTED, adaptive=False)
    config = msgspec.structs.replace(config, speculative=speculative)
    return Engine(config, runner, drafters=[drafter], adapters=store), runner


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
    assert {8, 16} <= {key.num_rows for key in keys} and len(keys) < 6
    assert graphs.num_replays > 4 * len(keys), "later steps reuse the graphs"
    padding = [bytes_or_floats(layer[NUM_PAGES]) for layer in runner._storage.layers]
    assert all(page.any() for page in padding), "padding is in the last page"


def test_the_usual_graphs_are_captured_before_requests_come(
    model: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = texts(new_engine(model, folder, None)[0], requests())
    graphs = StandInGraphs()
    note_steps(monkeypatch, graphs)
    engine, runner = new_engine(model, folder, graphs)
    owned = [bytes_or_floats(layer[:NUM_PAGES]).clone() for layer in runner._storage.layers]
    runner.capture_graphs()
    assert runner.graphs is not None
    keys = runner.graphs.keys
    assert [key.num_tokens for key in keys] == [256, 16, 8, 4, 2, 1]
    for layer, before in zip(runner._storage.layers, owned, strict=True):
        assert torch.equal(bytes_or_floats(layer[:NUM_PAGES]), before), "no page of a sequence changes"
    lengths = compare_steps(monkeypatch, model, runner)
    assert texts(engine, requests()) == wanted
    assert runner.graphs.keys == keys and {len(step) for step in lengths} >= {1, 11}


@pytest.mark.parametrize("is_ahead", [False, True])
def test_replayed_steps_verify_as_eager_ones_do(
    model: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    wanted = texts(new_engine(model, folder, None)[0], requests())
    sure = {
        (*request.prompt_token_ids, *text[:i]): token
        for request, text in zip(requests(), wanted, strict=True)
        for i, token in enumerate(text)
    }
    drafter = VariedDrafter(lambda tokens: sure.get(tuple(tokens), 0), 199, skill=0.6)
    graphs = StandInGraphs()
    note_steps(monkeypatch, graphs)
    engine, runner = new_engine(model, folder, graphs, drafter, is_ahead=is_ahead)
    lengths = compare_steps(monkeypatch, model, runner)
    for _ in range(2):
        assert texts(engine, requests()) == wanted
    assert {count for step in lengths if len(step) > 1 for count in step} == set(range(1, MOST_DRAFTED + 2))
    assert any(accepted for _, accepted in drafter.observed)
    assert runner.graphs is not None
    keys = runner.graphs.keys
    assert {key.row_tokens for key in keys} >= {1, 2, 4, 8}
    assert graphs.num_replays > len(keys), "later steps reuse the graphs"


RECIPES = {
    "attention": Recipe(rank=2, seed=1, size=1.0, ends=("q_proj", "v_proj", "o_proj")),
    "all": Recipe(rank=3, seed=2, size=1.0),
    "larger": Recipe(rank=9, seed=3, size=1.0, ends=("q_proj",)),
}


@pytest.mark.parametrize(("name", "is_ahead"), [("qwen3", True), ("mixtral", False)])
def test_adapters_come_and_go(
    name: str, is_ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three take turns in two slots, and layers get memory for them, and more of it."""
    write_checkpoint(next(v for v in VARIANTS if v.name == name), tmp_path)
    wanted = adapted_texts(tmp_path, None, is_ahead=is_ahead)[0]
    graphs = StandInGraphs()
    note_steps(monkeypatch, graphs)
    found, runner, lengths = adapted_texts(tmp_path, graphs, monkeypatch, is_ahead=is_ahead)
    assert found == wanted
    assert runner.graphs is not None
    adapted = [key for key in runner.graphs.keys if key.num_adapters]
    assert {key.num_adapters for key in adapted} == {1, 2}
    assert len(lengths) == graphs.num_replays
    assert graphs.num_captures > len(runner.graphs.keys), "those that read other memory are gone"


def test_only_steps_with_adapters_are_eager_where_no_graph_can_have_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(StandInGraphs):
        def __call__(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
            if self.newest is not None and self.newest.step_input.adapters is not None:
                raise RuntimeError("a product waits")
            return super().__call__(function)

    write_checkpoint(next(v for v in VARIANTS if v.name == "qwen3"), tmp_path)
    wanted = adapted_texts(tmp_path, None, counts=(2, 1), is_ahead=False)[0]
    graphs = Refusing()
    note_steps(monkeypatch, graphs)
    with caplog.at_level(logging.WARNING):
        found, runner, _ = adapted_texts(tmp_path, graphs, monkeypatch, counts=(2, 1), is_ahead=False)
    assert found == wanted and graphs.num_replays and runner.graphs is not None
    assert not any(key.num_adapters for key in runner.graphs.keys)
    assert [record.getMessage() for record in caplog.records] == [
        "decode steps with adapters run without CUDA graphs: one cannot be captured: a product waits"
    ]


@pytest.mark.slow  # half a minute of a core; cases of kernels have the same buffers
def test_a_device_reads_its_own_buffers(interpreter: Executor, tmp_path: Path) -> None:
    """In the interpreter's process kernels read what a GPU would, and not the host's lists."""
    write_checkpoint(Variant("one-layer", "qwen3", {"num_hidden_layers": 1, "head_dim": 32}), tmp_path)
    keys, lengths = interpreter.submit(replayed_on_device, str(tmp_path)).result()
    assert any(key.num_adapters == 2 and key.row_tokens > 1 for key in keys)
    assert any(max(step) > min(step) for step in lengths), "rows with more drafts and with fewer"


def replayed_on_device(folder: str) -> tuple[list[Key], list[list[int]]]:
    """The keys of graphs, and the query tokens of all replayed steps, of drafts with adapters."""
    model = load_model(config_of(folder))
    store, digests = make_store(model), [""]
    for name in ("attention", "larger"):
        path = write_adapter(Path(folder) / name, model, RECIPES[name])
        digests.append(store.load_now(name, path).digest)
    asked = [
        msgspec.structs.replace(
            request, adapter=digest, params=SamplingParams(max_tokens=14, temperature=0.0)
        )
        for request, digest in zip(requests(), digests, strict=False)
    ]
    graphs, drafter = StandInGraphs(), VariedDrafter(lambda tokens: 0, 199, skill=0.0)
    with pytest.MonkeyPatch.context() as patch:
        note_steps(patch, graphs)
        engine, runner = new_engine(model, folder, graphs, drafter, store, is_ahead=True)
        lengths = compare_steps(patch, model, runner)
        outputs = run(engine, asked)
    assert not any(output.error for each in outputs.values() for output in each)
    assert runner.graphs is not None
    return runner.graphs.keys, lengths


def adapted_texts(
    folder: Path,
    graphs: StandInGraphs | None,
    monkeypatch: pytest.MonkeyPatch | None = None,
    *,
    counts: Iterable[int] = (1, 2, 2, 4, 4),
    is_ahead: bool,
) -> tuple[list[list[list[int]]], ModelRunner, list[list[int]]]:
    """Answers of the first `counts` of a model and its adapters."""
    model = load_model(config_of(folder))  # an own one: layers keep their memory for adapters
    store = make_store(model, AdapterLimits(num_slots=2))
    digests = [""]
    for name, recipe in RECIPES.items():
        digests.append(store.load_now(name, write_adapter(folder / name, model, recipe)).digest)
    if graphs is not None:
        graphs.linears = [site.linear for site in model.sites.values()]
    engine, runner = new_engine(model, folder, graphs, None, store, is_ahead=is_ahead)
    lengths = [] if monkeypatch is None else compare_steps(monkeypatch, model, runner)
    found = []
    for count in counts:
        asked = [
            msgspec.structs.replace(request, adapter=digests[number % count])
            for number, request in enumerate(requests()[:9])
        ]
        found.append(texts(engine, asked))
    return found, runner, lengths


def compare_steps(
    monkeypatch: pytest.MonkeyPatch, model: LoadedModel, runner: ModelRunner
) -> list[list[int]]:
    """Run each step eagerly before it is replayed: hidden states and owned pages are the same.

    The query tokens of the steps that are replayed.
    """
    graphs, storage = runner.graphs, runner._storage
    lengths: list[list[int]] = []
    assert graphs is not None
    replayed = graphs.forward

    def checked(step: StepInput, slots_version: int) -> Tensor | None:
        before = [layer.clone() for layer in storage.layers]
        wanted = model.forward(step.token_ids, model.open(step, storage))
        after = [layer.clone() for layer in storage.layers]
        for layer, old in zip(storage.layers, before, strict=True):
            layer.copy_(old)
        step_lengths = list(step.query_lens)
        hidden = replayed(step, slots_version)
        if hidden is not None:
            lengths.append(step_lengths)
            torch.testing.assert_close(hidden, wanted, rtol=0, atol=1e-5)
            for graph in graphs._graphs.values():
                check_buffers(graph.static.step_input)
            for layer, own in zip(storage.layers, after, strict=True):
                found, right = bytes_or_floats(layer[:NUM_PAGES]), bytes_or_floats(own[:NUM_PAGES])
                torch.testing.assert_close(found, right, rtol=0, atol=1e-5)
        return hidden

    monkeypatch.setattr(graphs, "forward", checked)
    return lengths


def check_buffers(step: StepInput) -> None:
    """A GPU reads what is on the device, and a CPU the lists: they say the same, and the rest is empty."""
    own, count, adapters = step.on_device, len(step.rows), step.adapters
    if adapters is not None:
        assert adapters.on_device.slots.tolist() == adapters.slots.tolist()
        assert set(adapters.slots.tolist()) <= {-1, *adapters.on_device.active.tolist()}
    assert own.rows[:count].tolist() == step.rows
    assert own.context_lens[:count].tolist() == step.context_lens
    starts = [0, *itertools.accumulate(step.query_lens)]
    assert own.query_starts[: count + 1].tolist() == starts and starts[-1] == len(step.token_ids)
    assert set(own.query_starts[count + 1 :].tolist()) <= {len(step.token_ids)}
    assert max(step.query_lens) <= own.chain_lens[0] and max(step.context_lens) <= own.longest_context
    assert own.order.tolist() == list(range(len(own.rows))) and len(own.chain_lens) == len(own.rows)


def bytes_or_floats(pages: Tensor) -> Tensor:
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
        "decode steps run without CUDA graphs: one cannot be captured: no memory"
    ]


def test_graphs_that_are_there_go_on_where_memory_is_short_for_another(
    model: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graphs, calls = StandInGraphs(), 0

    def capture(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise torch.OutOfMemoryError("no memory")
        return graphs(function)

    wanted = texts(new_engine(model, folder, None)[0], requests())
    note_steps(monkeypatch, graphs)
    engine, runner = new_engine(model, folder, capture)
    with caplog.at_level(logging.WARNING):
        assert texts(engine, requests()) == wanted
    assert runner.graphs is not None and calls == 2 and len(runner.graphs.keys) == 1
    assert graphs.num_replays > 1 and "1 CUDA graphs of steps are all that memory holds" in caplog.text


class RecordingStream:
    """Notes which stream waits for which, and which is the current one."""

    current: list[object] = []  # noqa: RUF012
    waits: list[tuple[object, object]] = []  # noqa: RUF012

    def __init__(self, device: object) -> None: ...

    def wait_stream(self, other: object) -> None:
        self.waits.append((self, other))


class OnStream:
    """Makes a stream the current one."""

    def __init__(self, stream: RecordingStream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self.before, RecordingStream.current[0] = RecordingStream.current[0], self.stream

    def __exit__(self, *error: object) -> None:
        RecordingStream.current[0] = self.before


class InvalidGraph:
    """A graph whose capture was invalidated."""

    def capture_begin(self, *pool: object, **options: object) -> None: ...

    def capture_end(self) -> None:
        raise RuntimeError("capture is invalid")


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_capture_that_fails_leaves_the_current_stream_which_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, fails_first: bool
) -> None:
    main = RecordingStream(None)
    monkeypatch.setattr(RecordingStream, "current", [main])
    monkeypatch.setattr(RecordingStream, "waits", [])
    for name, value in {
        "Stream": RecordingStream,
        "CUDAGraph": InvalidGraph,
        "stream": OnStream,
        "current_stream": lambda: RecordingStream.current[0],
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "graph_pool_handle": lambda: (0, 1),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)

    def function() -> Tensor:
        if fails_first:
            raise RuntimeError("no memory")
        return torch.zeros(1)

    capture = CudaCapture(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="no memory" if fails_first else "capture is invalid"):
        capture(function)
    assert RecordingStream.current == [main], "torch.cuda.graph itself leaves its own stream there"
    assert RecordingStream.waits == [(capture._stream, main), (main, capture._stream)]
