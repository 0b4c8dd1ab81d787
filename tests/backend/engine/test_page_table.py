"""The device's page table follows the host's, whatever happens to sequences and steps."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine import inputs, page_table
from backend.engine.engine import Engine
from backend.engine.inputs import prepare
from backend.engine.page_table import PageTable
from backend.engine.runner_protocol import StepResult
from backend.engine.state import StateTable
from backend.types import Plan, Request, SamplingParams, Sequence
from tests.backend.engine.fake_runner import FakeRunner, expected

CPU = torch.device("cpu")
MAX_RUNNING = 4


class PreparingRunner(FakeRunner):
    """Prepares steps as on a GPU. They may fail, before and after that, but not when they run in parts."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(num_pages=9, max_model_tokens=128)
        self.table = StateTable(MAX_RUNNING, 128, frozenset(), CPU)
        self.seen: Counter[str] = Counter()
        self._rng = rng
        self._may_fail = False

    def fail(self, place: str) -> None:
        """Raise, now and then."""
        if self._may_fail and self._rng.random() < 0.1:
            self.seen[place] += 1
            raise RuntimeError(place)

    def run(self, plan: Plan) -> StepResult:
        self._may_fail = len(plan.chunks) > 1 or plan.num_drafts > 0
        step = prepare(plan, self.table, CPU)
        found = step.step_input.on_device.page_table
        assert found.dtype == torch.int32 and found is not self.table.page_table._host
        for row, owner in enumerate(self.table._owners):
            if owner is not None and (pages := self._bound(plan, owner)):
                assert found[row, : len(pages)].tolist() == pages
                self.seen["rows"] += 1
        slots = [p * 16 + i for c in plan.chunks for p, i in self._places(c.sequence, c.start, c.end)]
        assert step.step_input.slots.tolist() == slots
        self.seen["drafts"] += plan.num_drafts
        self.fail("forward pass")
        return super().run(plan)

    def forget(self, sequence: Sequence) -> None:
        self.table.forget(sequence)
        super().forget(sequence)

    def _bound(self, plan: Plan, owner: Sequence) -> list[int]:
        """The pages of a sequence of this step; of others those before their drafts' alone are there."""
        is_planned = any(chunk.sequence is owner for chunk in plan.chunks)
        return owner.pages if is_planned else owner.pages[: owner.num_computed_tokens // 16]

    def _places(self, sequence: Sequence, start: int, end: int) -> list[tuple[int, int]]:
        return [(sequence.pages[place // 16], place % 16) for place in range(start, end)]


def request(name: int, rng: random.Random) -> Request:
    prompt = [rng.randrange(3, 1000) for _ in range(rng.choice([1, 15, 16, 17, 40]))]
    guess = expected(prompt, 60)
    for place in rng.sample(range(len(guess)), min(4, len(guess))):
        guess[place] = 3
    params = SamplingParams(max_tokens=rng.choice([1, 30, 60]), ignore_eos=True)
    return Request(request_id=str(name), prompt_token_ids=prompt, params=params, prediction_token_ids=guess)


def play(seed: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests that come and are aborted, in few pages; what was seen of them."""
    rng = random.Random(seed)
    runner, upload = PreparingRunner(rng), inputs.upload

    def failing_upload(*arguments: object) -> list[torch.Tensor]:
        runner.fail("upload")
        return upload(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(inputs, "upload", failing_upload)
    config = EngineConfig(
        model="m",
        checkpoint="/none",
        max_running=MAX_RUNNING,
        max_batch_tokens=40,
        prefix_cache=rng.random() < 0.5,
        speculative=SpeculativeConfig(drafter="ngram", adaptive=False, max_tokens=20),
    )
    engine = Engine(config, runner)
    for name in range(12):
        engine.add(request(name, rng))
        for _ in range(rng.randrange(6)):
            engine.step()
        if rng.random() < 0.2:
            engine.abort(str(rng.randrange(name + 1)))
    while engine.has_work:
        engine.step()
    return runner.seen + Counter({"preemptions": engine.scheduler.preemptions_total})


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page tables have a copy, as on a GPU."""
    for module in (inputs, page_table):
        monkeypatch.setattr(module, "has_triton", lambda device: True)


def test_it_follows_through_growth_drafts_preemption_and_failed_steps(on_a_device: None) -> None:
    seen: Counter[str] = Counter()
    for seed in range(10):
        with pytest.MonkeyPatch.context() as monkeypatch:
            seen += play(seed, monkeypatch)
    assert all(seen[each] > 10 for each in ("rows", "drafts", "upload", "forward pass", "preemptions")), seen


@st.composite
def deeds(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """What is done to a row of three, and a number."""
    deed = st.sampled_from(["grow", "grow", "draft", "clear", "apply", "lose"])
    return draw(st.lists(st.tuples(deed, st.integers(0, 2), st.integers(1, 4)), max_size=40))


@settings(deadline=None)
@given(deeds=deeds())
def test_every_valid_column_is_right_after_any_deeds(deeds: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(page_table, "has_triton", lambda device: True)
        table = PageTable(3, 200, CPU)
    pages: list[list[int]] = [[], [], []]
    kept, number = [0, 0, 0], 0
    for deed, row, count in [*deeds, ("apply", 0, 0)]:
        if deed in ("grow", "draft"):
            del pages[row][kept[row] :]  # drafts that were given back
            pages[row] += range(number + 1, number + count + 1)
            number += count
            kept[row] = len(pages[row]) - (count if deed == "draft" else 0)
            table.grow(row, pages[row], kept[row])
        elif deed == "clear":
            pages[row], kept[row] = [], 0
            table.clear(row)
        else:
            changes = table.changes()
            places = list(zip(*changes[:2].tolist(), strict=True))
            assert len(set(places)) == len(places)
            if deed == "apply":
                table.apply(torch.from_numpy(changes))
                assert not table.changes().size
    for row, own in enumerate(pages):
        assert table.on_device[row, : len(own)].tolist() == own


def test_on_a_cpu_the_hosts_table_is_read_as_it_is() -> None:
    table = PageTable(2, 3, CPU)
    table.grow(1, [7, 8], 2)
    assert table.on_device.tolist() == [[0, 0, 0], [7, 8, 0]] and not table.changes().size
