"""Roll-outs without waits: the same chains as the loop that ends early, and one upload and download each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend.kernels.paged_attention import plan
from backend.kernels.upload import upload
from backend.layers.step_input import StepInput
from backend.models.loaded import LoadedModel
from backend.speculative.device_chains import Ahead, Chains, RollOuts, Spare
from backend.speculative.loading import LoadedDrafters
from backend.speculative.rollout import Beam, roll_out
from backend.speculative.weights_check import MODEL_DRAFTERS
from backend.types import Draft, Sequence
from tests.backend.engine.driving import run, texts
from tests.backend.kernels.waits import Waits, replaced, unseen
from tests.backend.speculative.head_cases import make_pair
from tests.backend.speculative.model_targets import (
    draft_in,
    load,
    new_engine,
    requests,
    set_min_path_probability,
    write_model,
)

VOCAB = 5


def drafts(logits: Tensor, lengths: list[int], limits: list[int]) -> list[Draft]:
    """A roll-out by a network that says `logits` [depth, B, VOCAB] whatever the tokens."""
    depth, table = max(limits), np.arange(len(lengths) * 4).reshape(len(lengths), 4)
    seen: list[StepInput] = []

    def level(step: StepInput) -> Tensor:
        number = len(seen)
        seen.append(step)
        places = [length + number for length in lengths]
        slots = [(4 * row + place // 16) * 16 + place % 16 for row, place in enumerate(places)]
        assert step.slots.tolist() == slots and step.positions.tolist() == places
        assert step.context_lens == step.on_device.context_lens.tolist() == [place + 1 for place in places]
        return logits[number]

    def begin(chains: Chains) -> Any:  # noqa: ANN401
        stored = chains.stored()
        assert stored.context_lens == stored.on_device.context_lens.tolist() == [max(1, n) for n in lengths]
        return level

    roll_outs = RollOuts(Ahead(4, 6, 64), begin, 99)
    arrays, padded = roll_outs.arrays([3] * len(lengths), lengths, table, depth)
    assert padded == lengths, "nothing is padded without graphs"
    result = roll_outs.run(upload(arrays, torch.device("cpu")), lengths)
    ids = [step.token_ids.tolist() for step in seen]
    assert ids == [[3] * len(lengths), *result[: depth - 1].tolist()]
    return roll_outs.drafts(result, [], limits)


@given(
    sharpness=st.floats(0.1, 8.0),
    limits=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    seed=st.integers(0, 10_000),
    bad_level=st.integers(0, 9),
)
def test_chains_are_those_of_the_loop_that_ends_early(
    sharpness: float, limits: list[int], seed: int, bad_level: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    depth, count = max(limits), len(limits)
    logits = sharpness * torch.randn(depth, count, VOCAB, generator=generator)
    if 0 < bad_level < depth:
        logits[bad_level] = torch.nan

    def advance(beam: Beam) -> Tensor:
        return logits[beam.level]

    wanted = roll_out(logits[0], advance, limits)
    found = drafts(logits, [7, 30, 0, 15][:count], limits)
    for mine, other in zip(found, wanted, strict=True):
        assert len(mine) == len(other)
        assert mine[:bad_level] == other[:bad_level] or not bad_level  # NaN: any token
    if not bad_level:
        assert found == wanted


def test_tails_go_to_spare_pages_behind_full_ones() -> None:
    table, lengths, sources, targets = Spare(100, 2).place([[5, 9], [], [7]], [[1, 2, 3], [], [40]])
    assert table.tolist() == [[5, 9, 100, 101], [102, 103, 0, 0], [7, 104, 105, 0]]
    assert lengths == [35, 0, 17]
    assert sources.tolist() == [1, 2, 3, 40] and targets.tolist() == [1600, 1601, 1602, 1664]


def target_and_drafter(name: str, folder: Path) -> tuple[LoadedModel, Path]:
    if name != "draft_model":
        pair = make_pair(folder, name, "qwen3")
        return pair.model, pair.folder
    write_model(folder / "target", "qwen3")
    write_model(folder / "draft", "qwen3", seed=2, num_hidden_layers=1)
    return load(folder / "target"), folder / "draft"


@pytest.mark.parametrize("name", MODEL_DRAFTERS)
def test_a_round_waits_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the prefix is not copied, which for a GPU's loop it is."""
    draft_in("ahead", monkeypatch)
    model, folder = target_and_drafter(name, tmp_path)
    engine, recording = new_engine(model, name, folder)
    assert recording is not None
    honest, found, unseen_upload = recording.inner.propose, list[dict[str, int]](), unseen(upload)
    uploads: Counter[str] = Counter()

    def counted_upload(arrays: list[Any], device: torch.device) -> list[Tensor]:
        uploads["uploads"] += 1
        return unseen_upload(arrays, device)  # type: ignore[no-any-return]

    def propose(sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        uploads.clear()
        with Waits() as waits, replaced(upload, counted_upload):
            drafts = list(honest(sequences, ks))
        del waits.copies["from_numpy"]  # attention on a CPU, which plans for itself
        found.append({**uploads, **+waits.reads, **+waits.copies})
        return drafts

    recording.inner.propose = propose  # type: ignore[method-assign]
    monkeypatch.setattr("backend.kv.storage.KVStorage.copy_pages", None)
    monkeypatch.setattr(plan, "seen_tokens", unseen(plan.seen_tokens))
    assert texts(engine, requests()) == texts(new_engine(model)[0], requests())
    counts = [each["uploads"] for each in found]
    assert len(found) > 8 and 1 in counts and max(counts) <= (2 if name == "draft_model" else 1)
    assert all({**each, "uploads": 1} == {"uploads": 1, "tolist": 1} for each in found), found


class StandInGraphs:
    """Captures a roll-out by running it; before each replay all that was uploaded for it is spoiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_graphs = self.num_replays = self.num_runs = 0
        self._newest: tuple[list[Tensor], list[int]] = [], []
        honest = RollOuts.run

        def run(roll_outs: RollOuts, uploaded: list[Tensor], lengths: list[int]) -> Tensor:
            self.num_runs += 1
            self._newest = uploaded, lengths
            return honest(roll_outs, uploaded, lengths)

        monkeypatch.setattr(RollOuts, "run", run)

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        self.num_graphs += 1
        result = function()

        def replay() -> None:
            uploaded, lengths = self._newest
            for tensor in uploaded:
                tensor.fill_(1 << 30)
            lengths[:] = [1 << 30] * len(lengths)
            result.fill_(-1)
            self.num_replays += 1
            result.copy_(function())

        return result, replay


def with_graphs(monkeypatch: pytest.MonkeyPatch) -> StandInGraphs:
    """Drafters are opened for a GPU with graphs."""
    graphs, honest = StandInGraphs(monkeypatch), LoadedDrafters.open
    monkeypatch.setattr(
        LoadedDrafters,
        "open",
        lambda loaded, storage, late: honest(loaded, storage, graphs, late, is_ahead=True),
    )
    return graphs


@pytest.mark.parametrize("name", MODEL_DRAFTERS)
@pytest.mark.parametrize("pages", [128, 10])
def test_replayed_roll_outs_draft_what_others_draft(
    name: str, pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sequences that come, go and are preempted, and with rows that are padding."""
    model, folder = target_and_drafter(name, tmp_path)
    asked = [*requests(max_tokens=9), *requests(max_tokens=40)]
    asked = [
        msgspec.structs.replace(each, request_id=str(i), prompt_token_ids=each.prompt_token_ids[::-1])
        for i, each in enumerate(asked)
    ]
    sizes = {"num_pages": pages, "max_batch_tokens": 24, "max_running": 5}
    engine, other = new_engine(model, name, folder, **sizes)
    plain = texts(engine, asked)
    graphs = with_graphs(monkeypatch)
    engine, recording = new_engine(model, name, folder, **sizes)
    assert texts(engine, asked) == plain
    assert recording is not None and other is not None
    said, wanted = ({tuple(s.tokens): s.draft for s in each.said if s.draft} for each in (recording, other))
    both = said.keys() & wanted.keys()  # when a sequence is asked depends on the time of steps
    assert len(both) > 30 and all(said[tokens] == wanted[tokens] for tokens in both)
    assert (engine.scheduler.preemptions_total > 0) == (pages == 10)
    assert 2 < graphs.num_graphs < 12 and graphs.num_replays > graphs.num_runs / 2
    engine.drop_cached()
    num_graphs, few = graphs.num_graphs, asked[: len(asked) // 4]
    assert texts(engine, few) == plain[: len(few)] and graphs.num_graphs > num_graphs


def test_what_cannot_be_captured_is_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        raise RuntimeError("no memory")

    model, folder = target_and_drafter("eagle", tmp_path)
    plain = texts(new_engine(model)[0], requests())
    honest = LoadedDrafters.open
    monkeypatch.setattr(
        LoadedDrafters, "open", lambda loaded, storage, late: honest(loaded, storage, refuse, is_ahead=True)
    )
    with caplog.at_level(logging.WARNING):
        assert texts(new_engine(model, "eagle", folder)[0], requests()) == plain
    assert [r.getMessage() for r in caplog.records] == [
        "drafts are rolled out without CUDA graphs, as one cannot be captured: no memory"
    ]


def test_roll_outs_that_are_captured_go_on_where_memory_is_short_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, folder = target_and_drafter("eagle", tmp_path)
    plain = texts(new_engine(model)[0], requests())
    graphs = with_graphs(monkeypatch)
    honest = StandInGraphs.__call__

    def capture(own: StandInGraphs, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        if own.num_graphs:
            raise torch.OutOfMemoryError("no memory")
        return honest(own, function)

    monkeypatch.setattr(StandInGraphs, "__call__", capture)
    with caplog.at_level(logging.WARNING):
        assert texts(new_engine(model, "eagle", folder)[0], requests()) == plain
    assert graphs.num_graphs == 1 and graphs.num_replays > 1
    assert caplog.text.count("1 CUDA graphs of drafts are all that memory holds") == 1


def drafts_ahead(
    target: str, name: str, folder: str, is_late: bool
) -> tuple[list[tuple[list[int], int, int]], dict[tuple[int, ...], Draft]]:
    """What an engine answers, and what its drafter says, without waiting for the device."""
    with pytest.MonkeyPatch.context() as patch:
        draft_in("ahead", patch)
        set_min_path_probability(patch, 0.0)
        engine, recording = new_engine(load(Path(target)), name, Path(folder), is_late=is_late)
        assert recording is not None
        outputs = run(engine, requests(max_tokens=5)[::2])
    told = [(o.token_ids, o.num_drafted, o.num_accepted) for own in outputs.values() for o in own]
    return told, {tuple(said.tokens): said.draft for said in recording.said if said.draft}


@pytest.mark.parametrize(
    ("name", "is_late"),
    [
        ("eagle", False),
        ("draft_model", True),
        pytest.param("mixture_of_attentions", False, marks=pytest.mark.slow),
        pytest.param("medusa", True, marks=pytest.mark.slow),
    ],
)
def test_kernels_in_triton_draft_the_same(
    name: str, is_late: bool, interpreter: Executor, tmp_path: Path
) -> None:
    model, folder = target_and_drafter(name, tmp_path)
    arguments = model.config.checkpoint, name, str(folder), is_late
    found, wanted = interpreter.submit(drafts_ahead, *arguments).result(), drafts_ahead(*arguments)
    assert found[0] == wanted[0] and sum(num_drafted for _, num_drafted, _ in found[0]) > 8
    assert is_late or found[1] == wanted[1]


def test_graphs_are_few_and_come_with_the_second_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.speculative.device_chains._MOST_GRAPHS", 2)
    captured: list[int] = []
    replayed: list[int] = []

    def capture(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        result = function()
        number = len(result)
        captured.append(number)
        return result, lambda: replayed.append(number)

    roll_outs = RollOuts(Ahead(8, 6, 64, capture), lambda chains: lambda step: torch.eye(VOCAB)[:4], 99)
    for depth in (1, 2, 3, 1, 1, 2, 2, 3, 3):
        arrays, lengths = roll_outs.arrays([3, 1, 2], [5, 6, 7], np.zeros((3, 4), dtype=np.int64), depth)
        assert lengths == [5, 6, 7, 0], "a row is padding"
        result = roll_outs.run(upload(arrays, torch.device("cpu")), lengths)
        assert result[:depth].tolist() == [[0, 1, 2, 3]] * depth
    assert captured == [2, 3], "depths 1 and 2, and a row of lengths"
    assert replayed == [2, 2, 3, 3]
