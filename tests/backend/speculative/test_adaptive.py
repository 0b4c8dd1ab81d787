from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest

from backend.speculative.acceptance import Acceptance, Places, prior_acceptance
from backend.speculative.adaptive import LengthPolicy
from backend.speculative.balance import Balance

PLAIN_S = 0.010


@dataclass
class Decoding:
    """A sequence of the simulation."""

    acceptance: Acceptance
    tokens_left: float
    is_known: bool = False  # to the drafter


@dataclass
class Simulation:
    """What drafts take on some machine, in plain steps; each guess is right with probability `skill`."""

    cost_per_draft: float
    num_sequences: int
    skill: float
    cost_of_any: float = 0.0  # of a step that has drafts, however many
    cost_of_new: float = 0.0  # of the first draft of all sequences together: they are read then
    tokens_each: float = math.inf

    def __post_init__(self) -> None:
        self._rng = random.Random(1)
        self._policy = LengthPolicy()
        self._prior = prior_acceptance()
        self._decoding: list[Decoding] = []
        for _ in range(self.num_sequences):
            self._decoding.append(Decoding(self._prior.child(), self.tokens_each * self._rng.random()))

    def run(self, steps: int) -> tuple[float, float]:
        """(Tokens per second compared with no drafts, drafts per step of the last hundred)."""
        tokens, time_s, drafted = 0, 0.0, 0.0
        for step in range(steps):
            self._policy.begin_step()
            ks = self._policy.choose([s.acceptance for s in self._decoding], [8] * self.num_sequences, 0)
            step_s = PLAIN_S * self._cost(ks) * self._rng.uniform(0.9, 1.1)
            accepted = [self._verify(s, k) for s, k in zip(self._decoding, ks, strict=True)]
            self._policy.costs.observe(self.num_sequences, sum(ks), step_s)
            self._policy.judge(self.num_sequences, sum(ks), sum(accepted), step_s)
            tokens += self.num_sequences + sum(accepted)
            time_s += step_s
            drafted += sum(ks) / 100 if step >= steps - 100 else 0.0
            self._replace_ended()
        return tokens / time_s / (self.num_sequences / PLAIN_S), drafted

    def _cost(self, ks: list[int]) -> float:
        new = [s for s, k in zip(self._decoding, ks, strict=True) if k and not s.is_known]
        for sequence in new:
            sequence.is_known = True
        reading = self.cost_of_new * len(new) / self.num_sequences
        return 1 + self.cost_of_any * any(ks) + self.cost_per_draft * sum(ks) + reading

    def _verify(self, sequence: Decoding, k: int) -> int:
        right = next((i for i in range(k) if self._rng.random() >= self.skill), k)
        if k:
            sequence.acceptance.observe(k, right)
            self._prior.observe(k, right)
        sequence.tokens_left -= 1 + right
        return right

    def _replace_ended(self) -> None:
        going = [s for s in self._decoding if s.tokens_left > 0]
        missing = self.num_sequences - len(going)
        self._decoding = going + [Decoding(self._prior.child(), self.tokens_each) for _ in range(missing)]


def policy_after(cost_per_draft: float, num_sequences: int, skill: float) -> tuple[float, float]:
    """What `Simulation.run` says of sequences that never end."""
    return Simulation(cost_per_draft, num_sequences, skill).run(300)


@pytest.mark.parametrize("num_sequences", [1, 4, 16, 64])
@pytest.mark.parametrize("cost", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("skill", [0.0, 0.3, 0.6, 0.95])
def test_drafting_is_never_a_loss(num_sequences: int, cost: float, skill: float) -> None:
    speedup, _ = policy_after(cost / num_sequences, num_sequences, skill)
    assert speedup > 0.97


@pytest.mark.parametrize("skill", [0.3, 0.8])
@pytest.mark.parametrize("num_sequences", [16, 64])
def test_trying_drafts_for_many_sequences_costs_little(num_sequences: int, skill: float) -> None:
    dear = Simulation(0.8 / num_sequences, num_sequences, skill, 0.3, cost_of_new=6.0, tokens_each=120)
    assert dear.run(300)[0] > 0.975
    assert dear.run(1000)[0] > 0.985


@pytest.mark.parametrize("num_sequences", [1, 4, 16, 64])
def test_what_most_costs_little_once_it_is_there_is_found_to_pay(num_sequences: int) -> None:
    """As on a GPU: drafts of few sequences take as long as those of all, and only the latter pay."""
    wide = Simulation(0.02 / num_sequences, num_sequences, 0.8, 0.3, cost_of_new=2.0, tokens_each=120)
    wide.run(300)
    assert wide.run(300)[0] > 2.5


class Trial:
    """The first drafts of 64 sequences, of so many nodes a level."""

    def __init__(self, width: int = 1) -> None:
        self.policy = LengthPolicy()
        self._width = width
        self.policy.judge(64, 0, 0, PLAIN_S)
        for _ in range(3):
            self.policy.costs.observe(64, 0, PLAIN_S)

    def choose(self) -> list[int]:
        self.policy.begin_step()
        return self.policy.choose([of_trees(self._width, 0.9) for _ in range(64)], [8] * 64, 64)

    def step(self, ratio: float, share_given: float = 1.0) -> int:
        """How many sequences got drafts, which took so many times a plain step."""
        num_chosen = sum(self.choose())
        num_given = int(self._width * num_chosen * share_given)
        self.policy.costs.observe(64, num_given, ratio * PLAIN_S)
        self.policy.judge(64, num_given, num_given // self._width, ratio * PLAIN_S)
        return num_chosen


def test_the_newest_of_many_sequences_are_the_first_to_try() -> None:
    trial = Trial()
    assert trial.choose() == [0] * 56 + [1] * 8
    assert [trial.step(1.2) for _ in range(7)] == [8, 8, 16, 16, 32, 32, 64]
    trial.step(1.2)
    assert min(trial.choose()) == 2, "then all get more"


def test_a_drafter_that_often_has_no_guess_is_tried_by_whom_it_was_asked_for() -> None:
    trial = Trial()
    assert [trial.step(1.1, 0.4) for _ in range(7)] == [8, 8, 16, 16, 32, 32, 64]


def test_the_first_level_of_trees_counts_with_all_its_nodes_where_few_are_tried() -> None:
    trial = Trial(width=4)
    assert [trial.step(1.2) for _ in range(11)] == [2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64]
    for width in (1, 4):
        trial = Trial(width)
        for num_drafts, ratio in ((8, 1.1), (16, 1.148)):
            for _ in range(2):
                trial.policy.costs.observe(64, num_drafts, ratio * PLAIN_S)
        assert any(trial.choose()) == (width == 1), "256 for all are not worth it"


def test_few_drafts_that_took_much_are_not_followed_by_more() -> None:
    policy = LengthPolicy()
    for num_drafts, ratio in ((0, 1.0), (8, 1.25), (16, 1.5)):
        for _ in range(3):
            policy.costs.observe(64, num_drafts, ratio * PLAIN_S)
    assert policy.choose([prior_acceptance() for _ in range(64)], [8] * 64, 64) == [0] * 64


def test_only_drafts_for_few_are_told_to_be_such() -> None:
    policy = LengthPolicy()
    policy.judge(64, 0, 0, PLAIN_S)
    for _ in range(3):
        policy.costs.observe(64, 0, PLAIN_S)

    def step(num_asked: int) -> bool:
        """One with drafts for some of as many as ask; whether it counted towards the end of the trial."""
        balance = policy._balances[12]
        before = balance._num_steps
        policy.begin_step()
        ks = policy.choose([prior_acceptance() for _ in range(num_asked)], [8] * num_asked, 64)
        policy.judge(64, sum(ks), sum(ks), PLAIN_S)
        return balance._num_steps > before

    assert [step(64), step(4), step(64)] == [False, True, False]
    for _ in range(2):
        policy.costs.observe(64, 8, 1.3 * PLAIN_S)
    policy.begin_step()
    for num_asked, tried in ((64, 4.0), (4, 4.0), (64, 400.0)):  # of three drafters, the last one never right
        policy.choose([Acceptance(tried, 2.8) for _ in range(num_asked)], [8] * num_asked, 64)
    before = policy._balances[12]._num_steps
    policy.judge(64, 8, 8, PLAIN_S)
    assert policy._balances[12]._num_steps == before


def test_steps_that_nobody_measured_are_forgotten_like_others() -> None:
    def forgotten(passed: int, *, is_measured: bool) -> float:
        policy = LengthPolicy()
        for _ in range(passed):
            if is_measured:
                policy.judge(1, 0, 0, PLAIN_S)
            else:
                policy.pass_by(1, 1)
        policy.choose([Acceptance()], [4], 1)  # what a plain step takes is not known
        return policy.forgotten

    assert forgotten(0, is_measured=False) > 0
    for is_measured in (False, True):
        one = forgotten(1, is_measured=is_measured)
        assert one == forgotten(0, is_measured=False)
        assert forgotten(12, is_measured=is_measured) == pytest.approx(12 * one)
        assert forgotten(10_000, is_measured=is_measured) == 1.0


def test_all_who_are_asked_in_a_step_forget_alike() -> None:
    policy = LengthPolicy()
    policy.pass_by(1, 12)
    found = []
    for _ in range(2):
        policy.begin_step()
        for _ in range(2):
            policy.choose([Acceptance()], [4], 1)
            found.append(policy.forgotten)
    assert found[0] == found[1] == pytest.approx(12 * found[2]) and found[2] == found[3]


def test_steps_that_nobody_measured_make_old_costs_doubtful() -> None:
    policy = LengthPolicy()
    for num_drafts in (0, 0, 4, 4):
        policy.costs.observe(1, num_drafts, PLAIN_S * (2 if num_drafts else 1))
    policy.pass_by(1, 100)
    assert policy.costs.curve(1).at(4) < 1.95


def test_cheap_right_drafts_are_long_and_dear_ones_short() -> None:
    speedup, drafted = policy_after(0.02, 1, 0.95)
    assert drafted >= 6 and speedup > 3
    assert policy_after(0.5, 1, 0.6)[1] < 1.5
    assert policy_after(0.02, 1, 0.0)[1] < 0.5


def test_without_a_figure_for_plain_steps_the_next_is_plain() -> None:
    policy = LengthPolicy()
    assert policy.choose([Acceptance()], [4], 1) == [0]
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    assert policy.choose([Acceptance()], [4], 1)[0] > 0
    assert policy.choose([Acceptance()] * 4, [4] * 4, 4) == [0] * 4, "another batch size, unknown"


def test_a_switch_takes_more_than_staying() -> None:
    policy = LengthPolicy()
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    for _ in range(2):
        policy.costs.observe(1, 1, PLAIN_S * 1.3)
    rates = np.linspace(0.2, 0.9, 71)
    on = [bool(policy.choose([Acceptance(1.0, r)], [1], 1)[0]) for r in rates]
    off = [bool(policy.choose([Acceptance(1.0, r)], [1], 1)[0]) for r in rates[::-1]][::-1]
    assert sum(off) > sum(on) > 0


def test_the_first_step_with_drafts_may_warm_up() -> None:
    policy = LengthPolicy()
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    for time_s in (6.0 * PLAIN_S, 1.3 * PLAIN_S):
        assert policy.choose([Acceptance()], [4], 1)[0] > 0
        policy.costs.observe(1, 4, time_s)
    assert policy.costs.curve(1).at(4) == pytest.approx(1.3)


def test_who_is_likely_right_may_have_what_another_leaves() -> None:
    policy = LengthPolicy()
    for _ in range(3):
        policy.costs.observe(2, 0, PLAIN_S)
    assert policy.costs.longest(2) == 4
    assert policy.choose([Acceptance(100.0, 99.0), Acceptance(100.0, 12.0)], [4, 4], 2) == [4, 0]


def test_only_what_was_tried_counts() -> None:
    acceptance = Acceptance(0.0, 0.0)
    acceptance.observe(8, 1)
    assert acceptance.rate == 0.5
    before = acceptance.rate
    acceptance.rest(0.1)
    assert acceptance.rate > before


def test_limits_hold_without_adaptation() -> None:
    assert LengthPolicy(is_adaptive=False).choose([Acceptance()] * 2, [3, 0], 2) == [3, 0]


def test_drafts_that_do_not_pay_rest_ever_longer_and_start_anew_when_they_do() -> None:
    policy = LengthPolicy()
    sure = [Acceptance(100.0, 95.0)]
    rests: list[int] = []
    for accepted in (0, 0, 4):
        while not policy.choose(sure, [4], 1)[0]:
            policy.costs.observe(1, 0, PLAIN_S)
            policy.judge(1, 0, 0, PLAIN_S)
            rests[-1:] = [rests[-1] + 1] if rests else []
        rests.append(0)
        for _ in range(20):
            ks = policy.choose(sure, [4], 1)
            if not ks[0]:
                break
            policy.judge(1, ks[0], accepted, 1.2 * PLAIN_S)
    assert 48 <= rests[0] < rests[1] and rests[2] == 0


def test_how_many_steps_are_plain_for_sure() -> None:
    policy = LengthPolicy()
    balance = policy._balances[0] = Balance()
    balance.observe_plain(PLAIN_S)
    for _ in range(8):
        balance.observe(1.0, 3.0 * PLAIN_S)
    assert policy.plain_steps(1) == 48 and policy.plain_steps(2) == 3
    policy.pass_by(1, 47)
    policy.pass_by(2, 47)  # of which nothing is known
    assert policy.plain_steps(1) == 3, "first plain steps are to be measured"
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    assert policy.plain_steps(1) == 1
    policy.pass_by(1, 4)
    assert policy.plain_steps(1) == 0


def of_trees(width: int, rate: float) -> Acceptance:
    """What is known of a sequence whose drafts have so many nodes at each level."""
    places = Places()
    for _ in range(500):
        places.observe_sizes([width] * 8, 8)
    return Acceptance(10, 10 * rate, places=places)


def test_a_level_of_a_tree_costs_all_its_nodes() -> None:
    def depth(acceptance: Acceptance) -> int:
        policy = LengthPolicy()
        for _ in range(3):
            policy.costs.observe(1, 0, PLAIN_S)
        for num_drafts in (4, 8, 16, 32):
            for _ in range(20):
                policy.costs.observe(1, num_drafts, PLAIN_S * (1 + 0.05 * num_drafts))
        return policy.choose([acceptance], [8], 1)[0]

    chain, narrow, wide = (depth(of_trees(width, 0.75)) for width in (1, 2, 8))
    assert depth(Acceptance(10, 7.5)) == chain > narrow > wide


def test_the_first_tree_is_one_level_deep_however_wide() -> None:
    policy = LengthPolicy()
    for _ in range(3):
        policy.costs.observe(1, 0, PLAIN_S)
    assert policy.choose([of_trees(12, 0.9)], [8], 1) == [1]
