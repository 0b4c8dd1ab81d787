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
from collections import defaultdict
from collections.abc import Callable, Sequence

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


class PositionMeans:
    """A moving average per draft position. One of which little is known leans on the position before it."""

    def __init__(self, prior: float) -> None:
        """`prior`: of the first position."""
        self._prior = prior
        # EMAs without normalisation: their ratio is an average in which early observations count fully.
        self._weights: list[float] = []
        self._totals: list[float] = []

    def add(self, position: int, value: float) -> None:
        """Observe a value. Positions are observed in order."""
        if position == len(self._weights):
            self._weights.append(0.0)
            self._totals.append(0.0)
        self._weights[position] = SLOW * self._weights[position] + 1.0
        self._totals[position] = SLOW * self._totals[position] + value

    def means(self, count: int) -> list[float]:
        """The mean acceptance of each of the first `count` positions."""
        found, mean = [], self._prior
        for total, weight in zip(self._totals[:count], self._weights, strict=False):
            mean = (total + PRIOR_SAMPLES * mean) / (weight + PRIOR_SAMPLES)
            found.append(mean)
        return found + [mean] * (count - len(found))


class DrafterAcceptance:
    """One drafter, by position in its drafts: how often tokens are accepted, and how many there are."""

    def __init__(self) -> None:
        self.accepted = PositionMeans(PRIOR_ACCEPTANCE)  # if all before it were
        self.sizes = PositionMeans(1.0)  # chains may end early, trees have several tokens per level

    def observe_sizes(self, sizes: Sequence[int], num_asked: int) -> None:
        """Learn how many tokens a draft had at each of the positions that were asked for."""
        for position in range(num_asked):
            self.sizes.add(position, sizes[position] if position < len(sizes) else 0)


class SequenceAcceptance:
    """How one sequence's acceptance compares with its drafter's average."""

    __slots__ = ("_accepted", "_expected", "drafter")

    def __init__(self, drafter: DrafterAcceptance) -> None:
        self.drafter = drafter
        self._accepted = self._expected = PRIOR_SAMPLES

    @property
    def factor(self) -> float:
        """1 for an average sequence."""
        return self._accepted / self._expected

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a verification; positions after the first rejected one were not tried."""
        num_tried = min(num_drafted, num_accepted + 1)
        self._expected = FAST * self._expected + sum(self.drafter.accepted.means(num_tried))
        self._accepted = FAST * self._accepted + min(num_drafted, num_accepted)
        for position in range(num_tried):
            self.drafter.accepted.add(position, position < num_accepted)

    def skip(self) -> None:
        """No draft was worth it: approach the drafter's average, for hard stretches end."""
        self._accepted += (1.0 - FAST) * (self._expected - self._accepted)


class GainAccount(Backoff):
    """Whether something saves more time than it takes; exponential backoff while it does not."""

    def __init__(self, first_pause_steps: int = PAUSE_STEPS) -> None:
        super().__init__(first_pause_steps)
        self._saved_s = self._spent_s = 0.0
        self._first_step = -1  # booked since the last pause

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
            self.fail(step)
            self._saved_s = self._spent_s = 0.0
            self._first_step = -1
        elif self._saved_s > MIN_SPEEDUP * self._spent_s:
            self.succeed()


class StepTimes:
    """What is known of decode steps with about the same number of sequences."""

    def __init__(self) -> None:
        self.plain_s = 0.0  # EMA of the time of a step without drafts
        self.account = GainAccount()
        self._num_plain = 0
        self._next_plain = math.inf  # step
        self.most_drafts = float(EXPLORED)  # tokens that a step may have
        # Exponentially weighted moments of (draft tokens, plain steps that these add).
        self._weight = self._mean_drafts = self._mean_added = self._variance = self._covariance = 0.0

    def take_plain_turn(self, step: int) -> bool:
        """Whether this step is to have no drafts, so that the time of a plain step is known.

        A grammar may force drafts in it all the same: then the next turn is tried.
        """
        is_due = self._num_plain < PRIOR_SAMPLES or step >= self._next_plain
        if is_due:
            self._next_plain = step + PAUSE_STEPS
        return is_due

    def observe_plain(self, time_s: float) -> None:
        """Learn from a step without drafts."""
        self._num_plain += 1
        if self._num_plain == 1:
            self.plain_s = time_s
        else:
            share = max(1.0 - FAST, 1.0 / self._num_plain)
            self.plain_s += share * (min(time_s, MAX_GROWTH * self.plain_s) - self.plain_s)
        self._weight *= SLOW  # what drafts once took counts less with every step without

    def observe_drafted(self, num_drafts: int, time_s: float) -> None:
        """Learn from a step with `num_drafts` draft tokens."""
        predicted = float(self.ratio(np.array([num_drafts], dtype=np.float64))[0])
        added = min(time_s / self.plain_s, MAX_GROWTH * predicted) - 1.0
        self.most_drafts = max(self.most_drafts, MAX_GROWTH * num_drafts)
        self._weight = FAST * self._weight + 1.0
        share = 1.0 / self._weight
        more_drafts, more_added = num_drafts - self._mean_drafts, added - self._mean_added
        self._mean_drafts += share * more_drafts
        self._mean_added += share * more_added
        self._variance = (1.0 - share) * (self._variance + share * more_drafts**2)
        self._covariance = (1.0 - share) * (self._covariance + share * more_drafts * more_added)

    def ratio(self, num_drafts: Floats) -> Floats:
        """Time of steps with that many draft tokens, relative to a plain one; 1 where nothing is known.

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
    """Chooses the draft lengths of a batch and learns from acceptance and step times."""

    def __init__(self) -> None:
        self._times = defaultdict[int, StepTimes](StepTimes)  # by class of batch sizes
        self._exploration = Backoff(PAUSE_STEPS)
        self._num_explorations = 0
        self._is_surprised = False  # the last exploration showed that acceptance is far too low: go on
        # Of the present step:
        self._num_expected: float | None = None  # accepted tokens, if it explores
        self._is_trial = False  # its drafts need not pay

    def may_draft(self, num_sequences: int, step: int) -> bool:
        """Whether drafts are allowed in this step: they did not lose time lately, no plain step is due."""
        self._is_trial, self._num_expected = False, None
        times = self._of(num_sequences)
        times.account.judge(step)
        return not times.account.is_paused(step) and not times.take_plain_turn(step)

    def is_paused(self, num_sequences: int, step: int) -> bool:
        """Whether drafts lost time lately, and are not allowed in this step."""
        return self._of(num_sequences).account.is_paused(step)

    def choose(
        self, candidates: Sequence[SequenceAcceptance], limits: list[int], num_sequences: int, step: int
    ) -> list[int]:
        """The draft length (of trees: the depth) of each candidate, out of `num_sequences` that decode."""
        if not candidates:
            return []
        survival, sizes = _survival(candidates, limits)
        lengths = self._best_lengths(survival, sizes, num_sequences)
        if self._is_surprised or not self._exploration.is_paused(step):
            self._exploration.fail(step)
            lengths = self._explore(lengths, limits)
            expected = sum(row[:k].sum() for row, k in zip(survival, lengths, strict=True))
            self._num_expected = (self._num_expected or 0.0) + float(expected)
        for candidate, length in zip(candidates, lengths, strict=True):
            if not length:
                candidate.skip()
        return lengths

    def observe_plain(self, num_sequences: int, time_s: float) -> None:
        """Learn from a step for which no drafter was asked."""
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
        self._is_surprised = num_accepted >= MAX_GROWTH * (self._num_expected or math.inf)
        plain_s = times.plain_s * (1.0 + num_accepted / num_sequences)
        if not self._is_trial:
            times.account.add(plain_s, min(time_s, MAX_GROWTH * plain_s), step)
        return plain_s - time_s

    def _of(self, num_sequences: int) -> StepTimes:
        return self._times[batch_class(num_sequences)]

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
        in_reach = int(np.searchsorted(num_tokens, times.most_drafts, side="right"))
        self._is_trial |= in_reach <= best
        chosen = order[: max(1, min(best + 1, in_reach))]
        lengths: list[int] = np.bincount(chosen // num_positions, minlength=num_candidates).tolist()
        return lengths

    def _explore(self, lengths: list[int], limits: list[int]) -> list[int]:
        """Longer drafts for the newest few: acceptance and step times change, and only drafts show it.

        Half as many every other time: two different numbers show what a token adds.
        """
        self._is_trial, self._is_surprised = True, False
        self._num_explorations += 1
        first = max(0, len(lengths) - EXPLORED // (1 + self._num_explorations % 2))
        newest = zip(lengths[first:], limits[first:], strict=True)
        longer = [min(limit, max(EXPLORED, int(MAX_GROWTH * length))) for length, limit in newest]
        return lengths[:first] + longer


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


def _survival(candidates: Sequence[SequenceAcceptance], limits: list[int]) -> tuple[Floats, Floats]:
    """[n, positions] each: the probability that a draft token and all before it are accepted, and its cost.

    Positions beyond a candidate's own limit have probability 0.
    """
    longest = max(limits)
    drafters = list(dict.fromkeys(candidate.drafter for candidate in candidates))
    rows = [drafters.index(candidate.drafter) for candidate in candidates] if len(drafters) > 1 else [0]
    acceptance = np.array([drafter.accepted.means(longest) for drafter in drafters])[rows]
    sizes = np.array([drafter.sizes.means(longest) for drafter in drafters])[rows]
    factors = np.array([candidate.factor for candidate in candidates])
    survival = np.multiply.accumulate(np.minimum(acceptance * factors[:, None], MAX_PROBABILITY), axis=1)
    survival[np.arange(longest) >= np.array(limits)[:, None]] = 0.0
    return survival, np.broadcast_to(sizes, survival.shape)
