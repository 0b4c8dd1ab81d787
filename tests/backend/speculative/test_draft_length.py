"""Lengths follow measured acceptance and step times, whatever the machine; the clock that measures them."""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.engine.runner_protocol import StepResult
from backend.speculative import EXPLORED, MIN_SPEEDUP, PAUSE_STEPS, PRIOR_ACCEPTANCE, PRIOR_SAMPLES
from backend.speculative.draft_length import (
    DrafterAcceptance,
    GainAccount,
    LengthModel,
    SequenceAcceptance,
    StepTimes,
    step_clock,
)
from backend.types import Plan, Request, SamplingParams
from tests.backend.engine.fake_runner import FakeRunner

PLAIN_S = 0.010
LIMIT = 8


@dataclass
class Decoding:
    """A sequence of the simulation."""

    acceptance: SequenceAcceptance
    tokens_left: float
    is_known: bool = False  # to the drafter


class Machine:
    """What drafts cost on some machine, in plain steps; each token is right with probability `skill`."""

    def __init__(
        self,
        cost_per_draft: float,
        num_sequences: int,
        skill: float,
        cost_of_any: float = 0.0,  # of a step that has drafts, however many
        cost_of_new: float = 0.0,  # of the first draft of all sequences together: a prefix is computed then
        tokens_each: float = math.inf,
    ) -> None:
        self.cost_per_draft, self.skill, self.cost_of_any = cost_per_draft, skill, cost_of_any
        self.cost_of_new, self.tokens_each = cost_of_new, tokens_each
        self.model = LengthModel()
        self.drafter = DrafterAcceptance()
        self._num_sequences = num_sequences
        self._rng = random.Random(1)
        self._step = 0
        self._decoding = [self._new(tokens_each * self._rng.random()) for _ in range(num_sequences)]

    def _new(self, tokens_left: float) -> Decoding:
        return Decoding(SequenceAcceptance(self.drafter), tokens_left)

    def run(self, steps: int) -> tuple[float, float]:
        """(Tokens per second relative to no drafts, drafts per step)."""
        num_tokens, time_s, num_drafts = 0, 0.0, 0
        for _ in range(steps):
            self._step += 1
            lengths = self._choose()
            step_s = PLAIN_S * self._cost(lengths) * self._rng.uniform(0.9, 1.1)
            accepted = [self._verify(s, k) for s, k in zip(self._decoding, lengths, strict=True)]
            if any(lengths):
                self.model.observe_drafted(
                    self._num_sequences, sum(lengths), sum(accepted), step_s, self._step
                )
            else:
                self.model.observe_plain(self._num_sequences, step_s)
            num_tokens += self._num_sequences + sum(accepted)
            time_s += step_s
            num_drafts += sum(lengths)
            self._replace_ended()
        return num_tokens / time_s / (self._num_sequences / PLAIN_S), num_drafts / steps

    def _choose(self) -> list[int]:
        if not self.model.may_draft(self._num_sequences, self._step):
            return [0] * self._num_sequences
        candidates = [s.acceptance for s in self._decoding]
        return self.model.choose(candidates, [LIMIT] * len(candidates), self._num_sequences, self._step)

    def _cost(self, lengths: list[int]) -> float:
        new = [s for s, k in zip(self._decoding, lengths, strict=True) if k and not s.is_known]
        for sequence in new:
            sequence.is_known = True
        catching_up = self.cost_of_new * len(new) / self._num_sequences
        return 1 + self.cost_of_any * any(lengths) + self.cost_per_draft * sum(lengths) + catching_up

    def _verify(self, sequence: Decoding, k: int) -> int:
        right = next((i for i in range(k) if self._rng.random() >= self.skill), k)
        if k:
            sequence.acceptance.observe(k, right)
        sequence.tokens_left -= 1 + right
        return right

    def _replace_ended(self) -> None:
        going = [s for s in self._decoding if s.tokens_left > 0]
        missing = self._num_sequences - len(going)
        self._decoding = going + [self._new(self.tokens_each) for _ in range(missing)]


@pytest.mark.parametrize("num_sequences", [1, 4, 16, 64])
@pytest.mark.parametrize("cost", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("skill", [0.0, 0.3, 0.6, 0.95])
def test_drafting_is_never_a_loss(num_sequences: int, cost: float, skill: float) -> None:
    machine = Machine(cost / num_sequences, num_sequences, skill)
    assert machine.run(300)[0] > 0.95, "the first drafts show what they cost"
    assert machine.run(1000)[0] > 0.97


@pytest.mark.parametrize("skill", [0.3, 0.8])
@pytest.mark.parametrize("num_sequences", [16, 64])
def test_trying_drafts_for_many_sequences_costs_little(num_sequences: int, skill: float) -> None:
    machine = Machine(
        0.8 / num_sequences, num_sequences, skill, cost_of_any=0.3, cost_of_new=6.0, tokens_each=120
    )
    assert machine.run(300)[0] > 0.97
    assert machine.run(1000)[0] > 0.985


@pytest.mark.parametrize("num_sequences", [1, 4, 16, 64])
def test_a_high_fixed_cost_does_not_hide_that_drafts_for_all_pay(num_sequences: int) -> None:
    """On a GPU, drafts of few sequences take as long as those of all, and only the latter pay."""
    machine = Machine(
        0.02 / num_sequences, num_sequences, 0.8, cost_of_any=0.3, cost_of_new=1.0, tokens_each=120
    )
    machine.run(600)
    assert machine.run(300)[0] > 2.0


def test_cheap_right_drafts_are_long_and_expensive_ones_short() -> None:
    cheap, expensive, wrong = Machine(0.02, 1, 0.95), Machine(0.5, 1, 0.6), Machine(0.02, 1, 0.0)
    for machine in (cheap, expensive, wrong):
        machine.run(300)
    speedup, num_drafts = cheap.run(300)
    assert num_drafts >= 6 and speedup > 3
    assert expensive.run(300)[1] < 2.0
    assert wrong.run(300)[1] < 0.5


def test_lengths_go_to_zero_when_drafts_lose_and_come_back_when_they_pay() -> None:
    machine = Machine(0.05, 1, 0.9)
    machine.run(300)
    assert machine.run(100)[1] > 4
    machine.skill = 0.0
    machine.run(300)
    assert machine.run(300)[1] < 0.5
    machine.skill = 0.9
    machine.run(2 * 16 * PAUSE_STEPS)  # the longest pause of exploration, twice
    assert machine.run(300)[1] > 4


def test_lengths_follow_the_cost_of_drafts_too() -> None:
    machine = Machine(0.05, 1, 0.7)
    machine.run(300)
    before = machine.run(300)[1]
    machine.cost_per_draft = 1.0
    machine.run(300)
    assert machine.run(300)[1] < 0.5 < before
    machine.cost_per_draft = 0.05
    machine.run(2 * 16 * PAUSE_STEPS)
    assert machine.run(300)[1] == pytest.approx(before, rel=0.3)


def measured(*steps: tuple[int, float], num_sequences: int = 1) -> LengthModel:
    """What is known after plain steps and three steps of each (draft tokens, relative time)."""
    model = LengthModel()
    for _ in range(int(PRIOR_SAMPLES)):
        model.observe_plain(num_sequences, PLAIN_S)
    for num_drafts, ratio in steps:
        for _ in range(3):
            model.observe_drafted(num_sequences, num_drafts, 0, ratio * PLAIN_S, 1)
    model._exploration.fail(1)
    return model


def verified(*drafts: tuple[int, int]) -> SequenceAcceptance:
    """A sequence and a drafter of its own, after drafts (drafted, accepted)."""
    acceptance = SequenceAcceptance(DrafterAcceptance())
    for num_drafted, num_accepted in drafts:
        acceptance.observe(num_drafted, num_accepted)
    return acceptance


def test_plain_steps_are_measured_first_and_now_and_then() -> None:
    model = LengthModel()
    for _ in range(int(PRIOR_SAMPLES)):
        assert not model.may_draft(2, 1)
        model.observe_plain(2, PLAIN_S)
    allowed = [model.may_draft(2, step) for step in range(3 * PAUSE_STEPS)]
    assert allowed.count(False) in (2, 3) and allowed.index(False) <= PAUSE_STEPS + 1
    assert not model.may_draft(64, 1), "another batch size, unknown"


def test_lengths_grow_by_what_was_measured() -> None:
    model = measured()
    assert model.choose([verified()], [24], 1, 2) == [EXPLORED]
    model = measured((4, 1.1))
    assert model.choose([verified(*[(8, 8)] * 20)], [24], 1, 2) == [8]


def test_sequences_with_higher_acceptance_get_longer_drafts() -> None:
    model = measured((8, 1.8), num_sequences=2)
    drafter = DrafterAcceptance()
    good, bad = SequenceAcceptance(drafter), SequenceAcceptance(drafter)
    for _ in range(20):
        good.observe(4, 4)
        bad.observe(4, 0)
    assert bad.factor < 0.2 < 1.0 < good.factor
    lengths = model.choose([good, bad], [LIMIT, LIMIT], 2, 2)
    assert lengths[0] >= 4 and lengths[1] == 0


def test_a_skipped_sequence_approaches_the_average() -> None:
    drafter = DrafterAcceptance()
    other, acceptance = SequenceAcceptance(drafter), SequenceAcceptance(drafter)
    for _ in range(200):
        other.observe(4, 4)
    for _ in range(10):
        acceptance.observe(4, 0)
    factors = [acceptance.factor]
    for _ in range(50):
        acceptance.skip()
        factors.append(acceptance.factor)
    assert factors[0] < 0.4 and factors == sorted(factors) and factors[-1] == pytest.approx(1.0, abs=0.02)


def test_acceptance_is_learned_by_position() -> None:
    drafter = DrafterAcceptance()
    assert drafter.accepted.means(3) == [pytest.approx(PRIOR_ACCEPTANCE)] * 3
    acceptance = SequenceAcceptance(drafter)
    for n in range(400):
        acceptance.observe(3, 0 if n % 2 else 3)
    first, second, third, fourth = drafter.accepted.means(4)
    assert first == pytest.approx(0.5, abs=0.1) and second > 0.9 and third > 0.9
    assert fourth == third, "as the position before it, where nothing is known"


def test_drafts_that_are_shorter_than_asked_for_cost_less() -> None:
    drafter = DrafterAcceptance()
    for n in range(400):
        drafter.observe_sizes([1, 1] if n % 2 else [1], 3)
    assert drafter.sizes.means(3) == pytest.approx([1.0, 0.5, 0.0], abs=0.1)


def test_a_level_of_a_tree_costs_all_its_nodes() -> None:
    def depth(width: int) -> int:
        model = measured(*[(num_drafts, 1 + 0.05 * num_drafts) for num_drafts in (4, 8, 16, 32)])
        found = verified(*[(8, 3)] * 10)
        for _ in range(400):
            found.drafter.observe_sizes([width] * LIMIT, LIMIT)
        return model.choose([found], [LIMIT], 1, 2)[0]

    assert depth(1) > depth(4) >= depth(8)


def test_exploration_is_for_few_sequences_and_ever_more_seldom_while_drafts_fail() -> None:
    machine = Machine(1.0 / 64, 64, 0.1)
    machine.run(300)
    explored: list[tuple[int, int]] = []
    honest = machine._choose

    def choose() -> list[int]:
        lengths = honest()
        if any(lengths):
            explored.append((machine._step, sum(map(bool, lengths))))
            assert max(lengths) <= EXPLORED
        return lengths

    machine._choose = choose  # type: ignore[method-assign]
    machine.run(4000)
    assert 2 <= len(explored) <= 40 and max(count for _, count in explored) <= EXPLORED


def test_realised_loss_pauses_drafts_for_a_batch_size_and_gain_ends_the_backoff() -> None:
    account = GainAccount()
    pauses, step = [], 0
    for _ in range(3):
        while not account.is_paused(step + 1):
            step += 1
            account.add(0.9, 1.0, step)
            account.judge(step)
        begin = step
        while account.is_paused(step + 1):
            step += 1
        pauses.append(step - begin)
    assert PAUSE_STEPS <= pauses[0] < pauses[1] < pauses[2]
    for _ in range(4 * PAUSE_STEPS):
        step += 1
        account.add(1.2, 1.0, step)
        account.judge(step)
        assert not account.is_paused(step + 1)
    for _ in range(4 * PAUSE_STEPS):
        step += 1
        account.add(0.0, 1.0, step)
        account.judge(step)
        if account.is_paused(step + 1):
            break
    begin = step
    while account.is_paused(step + 1):
        step += 1
    assert step - begin < 2 * PAUSE_STEPS, "it has paid since"


def test_what_drafts_give_in_fact_decides_whatever_the_model_expects() -> None:
    model, step, num_drafted = measured((8, 1.1)), 1, 0
    sure = verified(*[(8, 8)] * 40)
    for step in range(2, 1000):
        if model.may_draft(1, step) and any(model.choose([sure], [LIMIT], 1, step)):
            model.observe_drafted(1, 8, 0, 1.1 * PLAIN_S, step)
            num_drafted += 1
        else:
            model.observe_plain(1, PLAIN_S)
    assert num_drafted < 400


def test_one_slow_step_changes_little() -> None:
    model = measured((8, 1.4))
    sure = verified(*[(8, 8)] * 40)
    before = model.choose([sure], [LIMIT], 1, 2)
    assert before == [LIMIT]
    model.observe_drafted(1, 8, 8, 100 * PLAIN_S, 2)
    assert model.choose([sure], [LIMIT], 1, 3) == before
    model.observe_plain(1, 100 * PLAIN_S)
    assert model._of(1).plain_s < 1.5 * PLAIN_S


def ratios(*steps: tuple[int, float]) -> StepTimes:
    times = StepTimes()
    times.observe_plain(PLAIN_S)
    for num_drafts, ratio in steps:
        times.observe_drafted(num_drafts, ratio * PLAIN_S)
    return times


def test_step_times_are_a_line_through_what_was_measured() -> None:
    times = ratios(*[(k, 1.2 + 0.05 * k) for k in (2, 4, 8, 2, 6, 8, 3, 8)] * 3)
    found = times.ratio(np.array([1.0, 4.0, 16.0]))
    assert found == pytest.approx([1.25, 1.4, 2.0], rel=0.15)
    single = ratios(*[(8, 1.8)] * 5).ratio(np.array([4.0, 8.0, 16.0]))
    assert single == pytest.approx([1.6, 1.8, 1.9]), "a prior for what was not measured"
    assert (ratios((4, 0.9)).ratio(np.array([1.0, 9.0])) == 1.0).all(), "never faster than a plain step"


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 200), st.floats(0.5, 20.0)), max_size=20),
    drafts=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=30),
    limits=st.lists(st.integers(1, 24), min_size=1, max_size=9),
    num_others=st.integers(0, 70),
)
def test_whatever_was_measured_lengths_are_within_limits(
    steps: list[tuple[int, float]], drafts: list[tuple[int, int]], limits: list[int], num_others: int
) -> None:
    model, num_sequences = LengthModel(), len(limits) + num_others
    drafter = DrafterAcceptance()
    acceptances = [SequenceAcceptance(drafter) for _ in limits]
    for index, (num_drafted, num_accepted) in enumerate(drafts):
        acceptances[index % len(limits)].observe(num_drafted, min(num_drafted, num_accepted))
    model.observe_plain(num_sequences, PLAIN_S)
    for step, (num_drafts, ratio) in enumerate(steps):
        model.observe_drafted(num_sequences, num_drafts, 0, ratio * PLAIN_S, step)
    times = model._of(num_sequences)
    found = times.ratio(np.arange(1.0, 300.0))
    assert (found >= 1.0).all() or times._mean_added > 0
    assert (np.diff(found) >= -1e-9).all(), "more drafts never take less time"
    is_exploring = not model._exploration.is_paused(1000)
    lengths = model.choose(acceptances, limits, num_sequences, 1000)
    assert all(0 <= length <= limit for length, limit in zip(lengths, limits, strict=True))
    most = max(EXPLORED, times.most_drafts) + is_exploring * EXPLORED * max(EXPLORED, 2 * max(limits))
    assert sum(lengths) <= most


@given(rate=st.floats(0.0, 1.0), others=st.floats(0.0, 1.0))
def test_a_gain_below_the_margin_is_not_worth_a_draft(rate: float, others: float) -> None:
    model = measured((8, 1.0 + 8 * others))
    drafter = DrafterAcceptance()
    other, rng = SequenceAcceptance(drafter), random.Random(1)
    for _ in range(200):
        other.observe(1, int(rng.random() < rate))
    chosen = model.choose([SequenceAcceptance(drafter)], [1], 1, 2)
    (accepted,), (ratio,) = drafter.accepted.means(1), model._of(1).ratio(np.array([1.0])).tolist()
    assert chosen == [int((1.0 + min(accepted, 0.99)) / ratio >= MIN_SPEEDUP)]


def test_one_thread_of_the_processor_counts_its_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    clock = step_clock(torch.device("cpu"))
    began_s = clock()
    threading.Event().wait(0.05)
    assert clock() - began_s < 0.05
    while clock() - began_s < 0.05:
        pass


def test_several_threads_and_other_devices_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_clock(torch.device("cuda")) is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert step_clock(torch.device("cpu")) is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert step_clock(torch.device("cpu")) is time.thread_time


class Clock:
    """Goes on when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_engine_weighs_steps_by_that_clock() -> None:
    class Working(FakeRunner):
        def run(self, plan: Plan) -> StepResult:
            work.now_s += 0.25
            wall.now_s += 3.0
            return super().run(plan)

    work, wall, costs = Clock(), Clock(), list[tuple[float, int]]()

    def measure(num_sequences: int, num_drafts: int, time_s: float, *, num_prompt_tokens: int = 0) -> None:
        costs.append((time_s, num_prompt_tokens))

    engine = Engine(EngineConfig(model="fake", checkpoint="/none"), Working(), wall, work_clock=work)
    engine.speculator.measure = measure  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    engine.add(Request(request_id="a", prompt_token_ids=[5, 6, 7], params=params, prediction_token_ids=[1]))
    durations = []
    while engine.has_work:
        engine.step()
        assert engine.last_report is not None
        durations.append(engine.last_report.duration_s)
    assert set(durations) == {3.0}
    assert costs[0] == (0.25, 3) and len(costs) > 1 and set(costs[1:]) == {(0.25, 0)}
