"""How many tokens to draft: as many as maximise the expected tokens per second of the step, down to none.

Acceptance is an exponential moving average (EMA) per drafter and draft position, times one factor per
sequence. Step time is an EMA of the time of a plain step and a line, fitted with exponential weights,
through what draft tokens added to it; both per class of batch sizes. With b sequences, draft tokens that are
accepted with probabilities s_1, s_2, … and a step time of t(K) plain steps, K drafts give (b + s_1 + … +
s_K) / (b t(K)) times the tokens per second of a plain step. Drafts also have to pay in fact: where they lost
time they back off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from backend.speculative import (
    EXPLORED,
    FAST,
    MAX_GROWTH,
    MIN_SPEEDUP,
    PAUSE_STEPS,
    PRIOR_ACCEPTANCE,
    PRIOR_SAMPLES,
    SLOW,
)
from backend.speculative.backoff import Backoff

Floats = NDArray[np.float64]

MAX_PROBABILITY = 0.99


class DrafterAcceptance:
    """One drafter, by position in its drafts: how often tokens are accepted, and how many there are.

    Chains may end early, where the drafter is unsure; trees have several tokens per level.
    """

    def __init__(self) -> None:
        # EMAs without normalisation: the ratio of two is an average in which early observations count fully.
        self._tried: list[float] = []
        self._accepted: list[float] = []
        self._asked: list[float] = []
        self._given: list[float] = []

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a verification; positions after the first rejected one were not tried."""
        _grow(num_drafted, self._tried, self._accepted)
        for position in range(min(num_drafted, num_accepted + 1)):
            self._tried[position] = SLOW * self._tried[position] + 1.0
            self._accepted[position] = SLOW * self._accepted[position] + (position < num_accepted)

    def observe_sizes(self, sizes: Sequence[int], num_asked: int) -> None:
        """Learn how many tokens a draft had at each of the positions that were asked for."""
        _grow(num_asked, self._asked, self._given)
        for position in range(num_asked):
            size = sizes[position] if position < len(sizes) else 0
            self._asked[position] = SLOW * self._asked[position] + 1.0
            self._given[position] = SLOW * self._given[position] + size

    def acceptance(self, num_positions: int) -> list[float]:
        """Probability by position that a token is accepted if all before it were."""
        return _ratios(self._accepted, self._tried, num_positions, PRIOR_ACCEPTANCE)

    def sizes(self, num_positions: int) -> list[float]:
        """Tokens of a draft by position, averaged over those that were asked for it."""
        return _ratios(self._given, self._asked, num_positions, 1.0)


class SequenceAcceptance:
    """How one sequence's acceptance compares with its drafter's average."""

    __slots__ = ("_accepted", "_expected", "_skipped_at", "drafter")

    def __init__(self, drafter: DrafterAcceptance) -> None:
        self.drafter = drafter
        self._accepted = self._expected = PRIOR_SAMPLES
        self._skipped_at = -1  # tokens of the sequence when it was not worth a draft; -1: it was

    @property
    def factor(self) -> float:
        """1 for an average sequence."""
        return self._accepted / self._expected

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a verification of this sequence's draft."""
        num_tried = min(num_drafted, num_accepted + 1)
        expected = sum(self.drafter.acceptance(num_tried))
        self._accepted = FAST * self._accepted + min(num_drafted, num_accepted)
        self._expected = FAST * self._expected + expected
        self.drafter.observe(num_drafted, num_accepted)

    def relax(self, num_tokens: int) -> None:
        """Approach the drafter's average with each token since the last skipped draft: hard stretches end."""
        if self._skipped_at >= 0:
            share = 1.0 - SLOW ** (num_tokens - self._skipped_at)
            self._accepted += share * (self._expected - self._accepted)

    def note_choice(self, num_tokens: int, length: int) -> None:
        """A draft of so many tokens was chosen when the sequence had `num_tokens`."""
        self._skipped_at = -1 if length else num_tokens


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that can get a draft of at most `limit` tokens in a row."""

    acceptance: SequenceAcceptance
    limit: int
    num_tokens: int  # of the sequence


class GainAccount:
    """Whether something saves more time than it takes; exponential backoff while it does not."""

    def __init__(self, first_pause_steps: int = PAUSE_STEPS) -> None:
        self._backoff = Backoff(first_pause_steps)
        self._saved_s = self._spent_s = 0.0
        self._first_step = -1  # booked since the last pause

    def is_paused(self, step: int) -> bool:
        """Whether it lost time and is left out for now."""
        return self._backoff.is_paused(step)

    def add(self, saved_s: float, spent_s: float, step: int) -> None:
        """Book one step."""
        self._saved_s = SLOW * self._saved_s + saved_s
        self._spent_s = SLOW * self._spent_s + spent_s
        if self._first_step < 0:
            self._first_step = step

    def judge(self, step: int) -> None:
        """Back off from a loss, once PAUSE_STEPS went by since the first step that was booked."""
        if self._first_step < 0 or step - self._first_step < PAUSE_STEPS:
            return
        if self._saved_s < self._spent_s:
            self._backoff.fail(step)
            self._saved_s = self._spent_s = 0.0
            self._first_step = -1
        elif self._saved_s > MIN_SPEEDUP * self._spent_s:
            self._backoff.succeed()


class StepTimes:
    """What is known of decode steps with about the same number of sequences."""

    def __init__(self) -> None:
        self.plain_s = 0.0  # EMA of the time of a step without drafts
        self.account = GainAccount()
        self._num_plain = 0
        self._num_since_plain = 0
        self._largest = 0.0  # draft tokens of a measured step
        # Exponentially weighted moments of (draft tokens, plain steps that these add).
        self._weight = self._mean_drafts = self._mean_added = self._variance = self._covariance = 0.0

    def take_plain_turn(self) -> bool:
        """Whether the next step is to have no drafts, so that the time of a plain step is known."""
        if self._num_plain < PRIOR_SAMPLES:
            return True
        self._num_since_plain += 1
        if self._num_since_plain <= PAUSE_STEPS:
            return False
        self._num_since_plain = 0  # a grammar may force drafts in this step: then it is tried again later
        return True

    def observe_plain(self, time_s: float) -> None:
        """Learn from a step without drafts."""
        self._num_plain += 1
        if self._num_plain == 1:
            self.plain_s = time_s
        else:
            share = max(1.0 - FAST, 1.0 / self._num_plain)
            self.plain_s += share * (min(time_s, MAX_GROWTH * self.plain_s) - self.plain_s)
        self._num_since_plain = 0
        self._weight *= SLOW  # what drafts once took counts less with every step without

    def observe_drafted(self, num_drafts: int, time_s: float) -> None:
        """Learn from a step with so many draft tokens."""
        predicted = float(self.ratio(np.array([num_drafts], dtype=np.float64))[0])
        added = min(time_s / self.plain_s, MAX_GROWTH * predicted) - 1.0
        self._largest = max(self._largest, float(num_drafts))
        self._weight = FAST * self._weight + 1.0
        share = 1.0 / self._weight
        more_drafts, more_added = num_drafts - self._mean_drafts, added - self._mean_added
        self._mean_drafts += share * more_drafts
        self._mean_added += share * more_added
        self._variance = (1.0 - share) * (self._variance + share * more_drafts**2)
        self._covariance = (1.0 - share) * (self._covariance + share * more_drafts * more_added)

    def most_drafts(self) -> float:
        """Draft tokens that a step may have."""
        return max(float(EXPLORED), MAX_GROWTH * self._largest)

    def ratio(self, num_drafts: Floats) -> Floats:
        """Time of steps with so many draft tokens, relative to a plain one; 1 where nothing is known.

        Where one number of draft tokens was measured, half of its cost is taken to be fixed for fewer, and
        more for more: longer drafts are tried rather than ruled out.
        """
        if self._mean_added <= 0.0:
            return np.ones(num_drafts.shape)
        fewer, more = self._slope(0.5), self._slope(0.125)
        beyond = num_drafts - self._mean_drafts
        ratios: Floats = 1.0 + self._mean_added + np.where(beyond < 0.0, fewer, more) * beyond
        return ratios

    def _slope(self, prior_share: float) -> float:
        """Plain steps that a draft token adds; where little is known, this share of the mean cost of one."""
        steepest = self._mean_added / self._mean_drafts
        prior_variance = PRIOR_SAMPLES / max(self._weight, 1e-9) * (self._mean_drafts / 2.0) ** 2
        slope = self._covariance + prior_variance * steepest * prior_share
        return min(max(slope / (self._variance + prior_variance), 0.0), steepest)


class LengthModel:
    """Chooses the draft lengths of a batch and learns from what came of them."""

    def __init__(self) -> None:
        self._times: dict[int, StepTimes] = {}  # by class of batch sizes
        self._exploration = Backoff(PAUSE_STEPS)  # while explored drafts are accepted no more than expected
        self._num_explorations = 0
        # Of the present step:
        self._num_expected: float | None = None  # accepted tokens, if it explores
        self._is_trial = False  # its drafts need not pay

    def may_draft(self, num_sequences: int, step: int) -> bool:
        """Whether drafts are allowed in this step: they did not lose time lately, no plain step is due."""
        self._is_trial, self._num_expected = False, None
        times = self._of(num_sequences)
        times.account.judge(step)
        return not times.account.is_paused(step) and not times.take_plain_turn()

    def choose(self, candidates: Sequence[Candidate], num_sequences: int, step: int) -> list[int]:
        """The draft length (of trees: the depth) of each candidate, out of `num_sequences` that decode."""
        if not candidates:
            return []
        for each in candidates:
            each.acceptance.relax(each.num_tokens)
        survival, sizes = _survival(candidates)
        lengths = self._best_lengths(survival, sizes, num_sequences)
        if not self._exploration.is_paused(step):
            lengths = self._explore(candidates, lengths)
            expected = sum(row[:k].sum() for row, k in zip(survival, lengths, strict=True))
            self._num_expected = (self._num_expected or 0.0) + float(expected)
        for each, length in zip(candidates, lengths, strict=True):
            each.acceptance.note_choice(each.num_tokens, length)
        return lengths

    def observe_plain(self, num_sequences: int, time_s: float) -> None:
        """A step without drafts took so long, in which nobody was asked for any."""
        self._of(num_sequences).observe_plain(time_s)

    def observe_drafted(
        self, num_sequences: int, num_drafts: int, num_accepted: int, time_s: float, step: int
    ) -> float:
        """A step for whose sequences drafters worked; `num_drafts` is 0 where they had no guess.

        Returns the seconds that it saved over plain steps with as many tokens.
        """
        times = self._of(num_sequences)
        if not times.plain_s:
            return 0.0
        if num_drafts:
            times.observe_drafted(num_drafts, time_s)
        if self._num_expected is not None and num_accepted < MAX_GROWTH * self._num_expected:
            self._exploration.fail(step)  # else estimates are far too low: go on
        plain_s = times.plain_s * (1.0 + num_accepted / num_sequences)
        if not self._is_trial:
            times.account.add(plain_s, min(time_s, MAX_GROWTH * plain_s), step)
        return plain_s - time_s

    def _of(self, num_sequences: int) -> StepTimes:
        size = batch_class(num_sequences)
        if size not in self._times:
            self._times[size] = StepTimes()
        return self._times[size]

    def _best_lengths(self, survival: Floats, sizes: Floats, num_sequences: int) -> list[int]:
        """Lengths that maximise the expected tokens per second; all 0 where that is less than MIN_SPEEDUP.

        Draft tokens are taken by their probability of acceptance, which falls along each draft.
        """
        times = self._of(num_sequences)
        num_candidates, num_positions = survival.shape
        order = np.argsort(-survival, axis=None, kind="stable")
        num_tokens = np.add.accumulate(sizes.reshape(-1)[order])
        num_accepted = np.add.accumulate(survival.reshape(-1)[order])
        speedups = (1.0 + num_accepted / num_sequences) / times.ratio(num_tokens)
        best = int(speedups.argmax())
        if speedups[best] < MIN_SPEEDUP:
            return [0] * num_candidates
        in_reach = int(np.searchsorted(num_tokens, times.most_drafts(), side="right"))
        self._is_trial |= in_reach <= best
        chosen = order[: max(1, min(best + 1, in_reach))]
        lengths: list[int] = np.bincount(chosen // num_positions, minlength=num_candidates).tolist()
        return lengths

    def _explore(self, candidates: Sequence[Candidate], lengths: list[int]) -> list[int]:
        """Longer drafts for the newest few: acceptance and step times change, and only drafts show it.

        Half as many every other time: two different numbers show what a token adds.
        """
        self._is_trial = True
        self._num_explorations += 1
        num_explored = EXPLORED // (1 + self._num_explorations % 2)
        longer = list(lengths)
        for index in range(max(0, len(lengths) - num_explored), len(lengths)):
            longer[index] = min(candidates[index].limit, max(EXPLORED, int(MAX_GROWTH * lengths[index])))
        return longer


def step_clock(device: torch.device) -> Callable[[], float]:
    """Seconds in which this thread works on `device`: what step times are measured with.

    Where one thread of the processor computes everything it is that thread's own time: another process that
    takes the core for a while must not look like the cost of drafts.
    """
    is_alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if is_alone else time.perf_counter


def batch_class(num_sequences: int) -> int:
    """Batch sizes that are treated alike: two classes per power of two."""
    return int(2 * math.log2(num_sequences) + 1e-9) if num_sequences > 0 else 0


def _survival(candidates: Sequence[Candidate]) -> tuple[Floats, Floats]:
    """[n, positions] each: the probability that a draft token and all before it are accepted, and its cost.

    Positions beyond a candidate's own limit have probability 0.
    """
    longest = max(each.limit for each in candidates)
    drafters = list({id(each.acceptance.drafter): each.acceptance.drafter for each in candidates}.values())
    acceptance = np.array([drafter.acceptance(longest) for drafter in drafters])
    sizes = np.array([drafter.sizes(longest) for drafter in drafters])
    if len(drafters) > 1:
        rows = [drafters.index(each.acceptance.drafter) for each in candidates]
        acceptance, sizes = acceptance[rows], sizes[rows]
    factors = np.array([each.acceptance.factor for each in candidates])
    survival = np.minimum(acceptance * factors[:, None], MAX_PROBABILITY)
    survival = np.multiply.accumulate(survival, axis=1)
    limits = np.array([each.limit for each in candidates])
    survival[np.arange(longest) >= limits[:, None]] = 0.0
    return survival, np.broadcast_to(sizes, survival.shape)


def _ratios(found: list[float], of: list[float], count: int, prior: float) -> list[float]:
    """By position; one of which little is known is like the one before it."""
    ratios: list[float] = []
    for position in range(min(count, len(of))):
        prior = (found[position] + PRIOR_SAMPLES * prior) / (of[position] + PRIOR_SAMPLES)
        ratios.append(prior)
    return ratios + [prior] * (count - len(ratios))


def _grow(count: int, *lists: list[float]) -> None:
    """Make room for so many positions."""
    for each in lists:
        each += [0.0] * (count - len(each))
