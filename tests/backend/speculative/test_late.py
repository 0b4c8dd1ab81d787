"""Drafts that are read with the step that verifies them: no answer changes, and no round waits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from backend.engine.engine import Engine
from backend.speculative.draft_model import DraftModelDrafter
from backend.speculative.late import LateDrafts, needs_values
from backend.speculative.weights_check import MODEL_DRAFTERS
from backend.types import Draft, GrammarSpec, Request, Sequence, StepOutput
from tests.backend.engine.driving import run, texts
from tests.backend.kernels.waits import Waits
from tests.backend.speculative.model_targets import (
    draft_in,
    load,
    new_engine,
    requests,
    set_min_path_probability,
    write_model,
)
from tests.backend.speculative.recording import RecordingDrafter
from tests.backend.speculative.sequences import running
from tests.backend.speculative.test_device_chains import StandInGraphs, target_and_drafter, with_graphs


def test_a_step_takes_late_tokens_from_their_roll_outs() -> None:
    late = LateDrafts()
    results = [torch.arange(6).view(3, 2) + 10, torch.arange(12).view(4, 3) + 50]
    first = late.add(results[0], [2, 1])
    second = late.add(results[1], [0, 3])
    assert [list(map(len, each)) for each in (first, second)] == [[2, 1], [0, 3]]
    step = np.array([7, *second[1], -1, *first[0], *first[1][:1]], dtype=np.int32)
    numbers, places, index = late.find(step)
    ids = torch.from_numpy(step.copy())
    late.put(ids, numbers, torch.from_numpy(places), torch.from_numpy(index))
    assert ids.tolist() == [7, 51, 54, 57, -1, 10, 12, 11]
    assert late.values(first[0]) == first[0], "not read yet"
    late.read(numbers, [each.tolist() for each in late.results(numbers)])
    assert late.values(first[0]) == [10, 12] and late.values([3, *second[1][:2]]) == [3, 51, 54]
    assert late.values((5, 6)) == (5, 6)
    for _ in range(3000):
        (newest,), _ = late.add(results[0], [1]), late.find(np.array([7], dtype=np.int32))
    assert late.values(first[0]) == first[0], "it is forgotten"
    assert len(late._results) <= 18 and len(late._tokens) <= 18
    assert late.find(np.array(newest, dtype=np.int32))[2].tolist() == [0]


def test_a_token_of_long_ago_is_not_looked_for_in_the_roll_out_that_has_its_number_now() -> None:
    late = LateDrafts()
    old = late.add(torch.arange(24).view(4, 6), [3] * 6)
    for _ in range(1 << 10):
        late.add(torch.zeros(2, 1, dtype=torch.int64), [1])
    late.read([0], [each.tolist() for each in late.results([0])])
    assert late.values(old[5]) == old[5]


@pytest.mark.parametrize(
    ("params", "fields", "needs"),
    [
        ({}, {}, False),
        ({"logit_bias": {3: 1.0}, "logprobs": 2, "min_tokens": 3}, {}, False),
        ({"repetition_penalty": 1.1}, {}, True),
        ({"presence_penalty": 0.1}, {}, True),
        ({"frequency_penalty": -0.1}, {}, True),
        ({}, {"grammar": GrammarSpec(kind="regex", text="a")}, True),
    ],
)
def test_whose_drafts_are_read_first(
    params: dict[str, object], fields: dict[str, object], needs: bool
) -> None:
    sequence = running([1, 2])
    own = msgspec.structs.replace(sequence.request.params, **params)
    sequence.request = msgspec.structs.replace(sequence.request, params=own, **fields)
    assert needs_values(sequence) is needs


def note_waits(recording: RecordingDrafter | None, found: list[dict[str, int]]) -> None:
    """Append what is read in each round whose drafts are late."""
    assert recording is not None
    honest = recording.inner.propose

    def propose(sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        with Waits() as waits:
            drafts = list(honest(sequences, ks))
        if any(draft and min(draft) < -1 for draft in drafts if isinstance(draft, list)):
            waits.reads.pop("numpy", None)  # attention on a CPU, which plans for itself
            found.append({**+waits.reads})
        return drafts

    recording.inner.propose = propose  # type: ignore[method-assign]


def mixed_requests() -> list[Request]:
    """Greedy and with seeds; one with a penalty, beside which no draft is late."""
    asked = [*requests(max_tokens=12), *requests(max_tokens=30, temperature=0.7, logprobs=1)]
    asked += requests(max_tokens=9, frequency_penalty=0.5)[:1]
    return [msgspec.structs.replace(each, request_id=str(i)) for i, each in enumerate(asked)]


def answers(engine: Engine) -> tuple[dict[str, object], list[StepOutput]]:
    found = run(engine, mixed_requests())
    outputs = [output for own in found.values() for output in own]
    told = {
        name: [(o.token_ids, [r.rank for r in o.logprobs or []]) for o in own] for name, own in found.items()
    }
    flat = {
        name: ([t for ids, _ in own for t in ids], [r for _, ranks in own for r in ranks])
        for name, own in told.items()
    }
    return flat, outputs  # type: ignore[return-value]


@pytest.mark.parametrize("name", MODEL_DRAFTERS)
@pytest.mark.parametrize("pages", [128, 10])
def test_no_answer_changes_and_no_round_waits(
    name: str, pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sequences that come, go and are preempted, with graphs, in their memory."""
    model, folder = target_and_drafter(name, tmp_path)
    sizes = {"num_pages": pages, "max_batch_tokens": 24, "max_running": 5}
    plain, _ = answers(new_engine(model, **sizes)[0])  # type: ignore[arg-type]
    graphs: StandInGraphs = with_graphs(monkeypatch)
    engine, recording = new_engine(model, name, folder, is_late=True, **sizes)
    waits: list[dict[str, int]] = []
    note_waits(recording, waits)
    found, outputs = answers(engine)
    assert found == plain
    assert len(waits) > 10 and not any(waits), waits
    assert graphs.num_replays > 5
    drafted = [output for output in outputs if output.num_drafted]
    assert any(0 < output.num_accepted < output.num_drafted for output in drafted)
    assert all(token >= 0 for output in outputs for token in output.token_ids)


def test_accepted_drafts_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model that is the target, so that all are: it computes at most the last one again."""
    draft_in("ahead", monkeypatch)
    set_min_path_probability(monkeypatch, 0.0)
    write_model(tmp_path, "qwen3")
    model = load(tmp_path)
    counts: list[int] = []
    honest = DraftModelDrafter._forward

    def forward(drafter: DraftModelDrafter, *arguments: object) -> object:
        counts.extend(arguments[3])  # type: ignore[arg-type]
        return honest(drafter, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DraftModelDrafter, "_forward", forward)
    engine, _ = new_engine(model, "draft_model", tmp_path, is_late=True)
    assert texts(engine, requests()) == texts(new_engine(model)[0], requests())
    assert len(counts) > 8 and sum(count > 1 for count in counts) <= 4, counts
