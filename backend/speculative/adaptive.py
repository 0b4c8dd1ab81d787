"""How many tokens to draft: as many as measured acceptance and step times make worth it, down to 0.

With acceptance p_j at place j, k drafts give 1 + p_1 + p_1 p_2 + … + p_1…p_k tokens; p_j is what the
sequence's own rate makes expect, corrected by how often the drafter failed at that place. What a step with
K drafts takes, compared with one without, is measured for the batch size at hand. Lengths are those that
promise most tokens per second, and 0 unless that is clearly more than without. All figures are learned all
the time. Of trees, lengths are depths, p is that of a level, and each level costs as many drafts as the
trees before had nodes for it.
A drafter may give less than it is asked for: what it is asked for is what is judged and what is chosen.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backend.speculative.acceptance import Acceptance, Floats, running_sums, sizes, survivals

Ints = NDArray[np.int64]

_REST = 0.002
"""Share of bad experience that is forgotten each time that somebody asks and gets none, where drafts double a
step's time: they are tried again, seldom, and the more often the less a trial costs."""

_LEAST_TRIAL_COST = 0.2
"""In plain steps; what a trial is thought to cost at least."""

_DOUBT = 0.001
"""The same for the measured cost of steps with drafts: one hiccup must not end all drafting for ever."""

_THRESHOLDS = np.array((0.9, 0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03))[:, None, None]
"""A draft token is worth it when it survives with at least such a probability: the candidates."""

_START_GAIN = 1.1
_STOP_GAIN = 1.04
"""Drafting begins when it promises so many times the speed without, and ends when it promises less."""

_RISE, _FALL = 0.1, 0.5
"""Weight of a measurement above and below what was expected: other work on the machine only ever delays."""

_FIRST_PLAIN_STEPS = 3
"""Steps without drafts at every new size of the batch, before the first with."""

_FIRST_DRAFTED_STEPS = 2
"""Steps with about as many drafts before it is believed what they take: the very first may only warm up."""

_MEASURE_EVERY_STEPS = 96
"""After so many steps with drafts, one without: to know what that takes."""

_FIRST_GUESS = 0.05
"""What a draft token per sequence is thought to add to a step before it was ever measured."""

_FIXED_SHARE = 0.5
"""Of what drafts add to a step, so much is there with the first: where only longer ones were measured."""

_SLOPE_BEYOND = 0.8
"""More than were measured add this much of what those took each: lengths are tried rather than shunned."""

_TRIAL_STEPS, _TRIAL_GAIN = 8, 0.95
"""Steps with drafts before they are judged as a whole, and what they must promise until then: a few
verifications are often unlucky ones."""

_JUDGE_MEMORY = 0.95
"""Weight that older steps keep in that."""

_LEAST_GAIN, _GOOD_GAIN = 0.95, 1.1
"""Drafts rest when they gave so many times the speed without, and are trusted anew when they gave more."""

_SHORT_REST_STEPS, _LONG_REST_STEPS = 48, 1024
"""For so many steps at first, and twice as many every other time."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """How many times a plain step one with drafts takes, by how many: straight between what was measured."""

    num_drafts: list[float]  # rising, from 0 on
    ratios: list[float]
    slope: float  # behind the last one, per draft

    def at(self, num_drafts: float) -> float:
        """1 without any."""
        if num_drafts <= 0:
            return 1.0
        beyond = num_drafts - self.num_drafts[-1]
        if beyond >= 0:
            return self.ratios[-1] + beyond * self.slope
        place = bisect.bisect(self.num_drafts, num_drafts)
        (low, high), (below, above) = (each[place - 1 : place + 1] for each in (self.num_drafts, self.ratios))
        return below + (above - below) * (num_drafts - low) / (high - low)


class StepCosts:
    """Measured times of steps that only decode, by number of sequences and of draft tokens."""

    def __init__(self) -> None:
        self._plain_s: dict[int, float] = {}  # by size of the batch
        # … and of K: mean K, times a plain step, steps seen.
        self._drafted: dict[int, dict[int, tuple[float, float, int]]] = {}
        self._num_plain: dict[int, int] = {}
        self._since_plain: dict[int, int] = {}

    def observe(self, num_sequences: int, num_drafts: int, time_s: float) -> None:
        """Learn from a step."""
        size = _size(num_sequences)
        plain_s = self._plain_s.get(size, 0.0)
        if num_drafts == 0:
            self._plain_s[size] = _blend(plain_s, time_s)
            self._num_plain[size] = self._num_plain.get(size, 0) + 1
            self._since_plain[size] = 0
            by_drafts = self._drafted.get(size, {})
            for key, (mean, ratio, count) in by_drafts.items():
                by_drafts[key] = (mean, ratio + _DOUBT * (1.0 - ratio), count)
        elif plain_s:
            self._since_plain[size] += 1
            by_drafts = self._drafted.setdefault(size, {})
            mean, ratio, count = by_drafts.get(_size(num_drafts), (float(num_drafts), math.inf, 0))
            mean += _RISE * (num_drafts - mean)
            new = time_s / plain_s
            ratio = min(ratio, new) if count < _FIRST_DRAFTED_STEPS else _blend(ratio, new)
            by_drafts[_size(num_drafts)] = (mean, ratio, count + 1)

    def longest(self, num_sequences: int) -> float:
        """Draft tokens that a step may have for what is known: lengths are felt for, not leapt at."""
        points = self._known(num_sequences)
        return max(2.0 * points[-1][0], num_sequences) if points else max(4.0, num_sequences)

    def plain_steps_wanted(self, num_sequences: int) -> int:
        """So many of the next steps should have no drafts, to measure what that takes."""
        size = _size(num_sequences)
        missing = _FIRST_PLAIN_STEPS - self._num_plain.get(size, 0)
        if missing <= 0:
            return int(self._since_plain[size] >= _MEASURE_EVERY_STEPS)
        return missing

    def curve(self, num_sequences: int) -> CostCurve:
        """What is known of steps with so many sequences."""
        points = self._known(num_sequences)
        if not points:
            return CostCurve([0.0], [1.0], _FIRST_GUESS / num_sequences)
        mean, ratio = points[-1]
        first = 1.0 + _FIXED_SHARE * max(0.0, points[0][1] - 1.0)
        means, ratios = zip((0.0, first), *points, strict=True)
        # Fewer drafts take no longer than more; what is measured too high is more common than too low.
        rising = list(itertools.accumulate(reversed(ratios), min))[::-1]
        return CostCurve(list(means), rising, max(0.0, _SLOPE_BEYOND * (ratio - 1.0) / mean))

    def _known(self, num_sequences: int) -> list[tuple[float, float]]:
        """(Drafts, times a plain step) that are believed, fewest drafts first."""
        found = self._drafted.get(_size(num_sequences), {}).values()
        return sorted((mean, ratio) for mean, ratio, count in found if count >= _FIRST_DRAFTED_STEPS)


class Balance:
    """What drafts have given and taken at one size of the batch, both in steps without."""

    __slots__ = (
        "_gained",
        "_idle_steps",
        "_next_rest_steps",
        "_num_steps",
        "_plain_s",
        "_rest_steps",
        "_spent",
    )

    def __init__(self) -> None:
        self._plain_s = 0.0
        self._gained = self._spent = 0.0
        self._num_steps = 0  # with drafts, since the trial began
        self._rest_steps = 0
        self._idle_steps = 0  # without drafts, since nobody wanted any
        self._next_rest_steps = _SHORT_REST_STEPS

    @property
    def rest_steps(self) -> int:
        """So many steps are to be without drafts, for they have not paid of late."""
        return self._rest_steps

    @property
    def is_on_trial(self) -> bool:
        """Whether there were too few of late to judge them."""
        return self._num_steps < _TRIAL_STEPS

    def observe_plain(self, time_s: float) -> None:
        """A step without drafts."""
        old = self._plain_s
        self._plain_s = old + _RISE * (min(time_s, 1.5 * old) - old) if old else time_s
        self.pass_by(1)

    def pass_by(self, num_steps: int) -> None:
        """So many steps without drafts."""
        self._rest_steps = max(0, self._rest_steps - num_steps)
        self._idle_steps += num_steps
        if self._idle_steps >= self._next_rest_steps and not self.is_on_trial:
            self._begin_trial()

    def observe(self, gain: float, time_s: float) -> float:
        """A step with drafts that gave `gain` times the tokens of one without; returns the seconds saved."""
        if not self._plain_s:
            return 0.0
        spent = min(time_s / self._plain_s, 2.0 * gain)
        self._gained = _JUDGE_MEMORY * self._gained + gain
        self._spent = _JUDGE_MEMORY * self._spent + spent
        self._num_steps += 1
        self._idle_steps = 0
        if not self.is_on_trial:
            self._judge()
        return (gain - spent) * self._plain_s

    def _judge(self) -> None:
        if self._gained < _LEAST_GAIN * self._spent:
            self._rest_steps = self._next_rest_steps
            self._begin_trial()
        elif self._gained > _GOOD_GAIN * self._spent:
            self._next_rest_steps = _SHORT_REST_STEPS

    def _begin_trial(self) -> None:
        """The next one comes only after twice the time."""
        self._next_rest_steps = min(2 * self._next_rest_steps, _LONG_REST_STEPS)
        self._gained = self._spent = 0.0
        self._num_steps = self._idle_steps = 0


class LengthPolicy:
    """Chooses draft lengths for a batch."""

    def __init__(self, *, is_adaptive: bool = True) -> None:
        self.costs = StepCosts()
        self._balances: dict[int, Balance] = {}  # by size of the batch
        self._is_adaptive = is_adaptive
        self._is_drafting = False

    def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
        """Places of each of these sequences' drafts, out of `num_running` that decode."""
        if not self._is_adaptive:
            return list(limits)
        if not acceptances:
            return []
        num_sequences = max(num_running, len(limits))
        if self.plain_steps(num_sequences):
            self._is_drafting = False
            ks = [0] * len(limits)
        else:
            ks = self._worthwhile(acceptances, limits, num_sequences)
        if not all(ks):
            cost = self.costs.curve(num_sequences).at(num_sequences) - 1.0
            share = _REST / max(cost, _LEAST_TRIAL_COST)
            for acceptance, k in zip(acceptances, ks, strict=True):
                if k == 0:
                    acceptance.rest(share)
        return ks

    def plain_steps(self, num_sequences: int) -> int:
        """So many steps are to be without drafts for sure: to be measured, or because drafts do not pay."""
        balance = self._balances.get(_size(num_sequences))
        resting = 0 if balance is None else balance.rest_steps
        return max(self.costs.plain_steps_wanted(num_sequences), resting)

    def pass_by(self, num_sequences: int, num_steps: int) -> None:
        """So many steps without drafts went by that nobody measured."""
        balance = self._balances.get(_size(num_sequences))
        if balance is not None:
            balance.pass_by(num_steps)

    def judge(self, num_sequences: int, num_drafts: int, num_accepted: int, time_s: float) -> float:
        """A step that only decoded has taken so long, and kept so many of its draft tokens.

        Returns how much longer its tokens would have taken in steps without drafts, in seconds.
        """
        balance = self._balances.setdefault(_size(num_sequences), Balance())
        if num_drafts:
            return balance.observe(1.0 + num_accepted / num_sequences, time_s)
        balance.observe_plain(time_s)
        return 0.0

    def _least_gain(self, num_sequences: int) -> float:
        balance = self._balances.get(_size(num_sequences))
        if balance is not None and balance.is_on_trial:
            return _TRIAL_GAIN
        return _STOP_GAIN if self._is_drafting else _START_GAIN

    def _worthwhile(self, acceptances: list[Acceptance], limits: list[int], num_sequences: int) -> list[int]:
        likely = survivals(acceptances, limits)
        if 1.0 + float(likely.sum()) / num_sequences < self._least_gain(num_sequences):
            self._is_drafting = False
            return [0] * len(limits)
        return self._best(likely, sizes(acceptances, max(limits)), num_sequences)

    def _best(self, likely: Floats, num_tokens: Floats, num_sequences: int) -> list[int]:
        """`likely` [n, places] falls along each row, so that a threshold leaves the first places of it."""
        num_asked = len(likely)
        lengths = (likely >= _THRESHOLDS).sum(axis=2)  # [thresholds, n]
        tokens = _at(num_tokens, lengths)
        share = self.costs.longest(num_sequences) // num_asked
        too_many = tokens > share * num_asked
        if too_many.any():
            # More than can be foreseen: all sequences get the same share, but one level, however wide.
            shares = np.maximum(1, (num_tokens[:, 1:] <= share).sum(axis=1))
            lengths[too_many] = np.minimum(lengths[too_many], shares)
            tokens = _at(num_tokens, lengths)
        curve = self.costs.curve(num_sequences)
        gains = _at(running_sums(likely), lengths).tolist()
        speedups = [
            (1.0 + gain / num_sequences) / curve.at(count)
            for gain, count in zip(gains, tokens.tolist(), strict=True)
        ]
        best = max(range(len(speedups)), key=speedups.__getitem__)
        self._is_drafting = speedups[best] >= self._least_gain(num_sequences)
        chosen: list[int] = lengths[best].tolist()
        return chosen if self._is_drafting else [0] * num_asked


def _at(sums: Floats, lengths: Ints) -> Floats:
    """Each row of `sums` [n or 1, places + 1] at its lengths [thresholds, n], added up: [thresholds]."""
    found: Floats = sums[np.arange(len(sums)), lengths].sum(axis=1)
    return found


@functools.cache
def _size(count: int) -> int:
    """Which order of magnitude: half a power of two each."""
    return int(2 * math.log2(count) + 1e-9) if count > 0 else 0


def _blend(old: float, new: float) -> float:
    """Smoothed value that starts at the first; a hiccup counts as half as much again at most."""
    if old == 0.0 or new < old:
        return new if old == 0.0 else old + _FALL * (new - old)
    return old + _RISE * (min(new, 1.5 * old) - old)
