"""How many tokens to draft: as many as measured acceptance and step times make worth it, down to 0.

With acceptance p, k drafts give 1 + p + p² + … + p^k tokens. What a step with K drafts takes, compared with
one without, is measured for the batch size at hand. Lengths are those that promise most tokens per second,
and 0 unless that is clearly more than without. Both figures are learned all the time. Of trees, lengths are
depths, p is that of a level, and each level costs as many drafts as the trees before had nodes for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_MEMORY = 0.9
"""Weight that older verifications of a sequence keep with each new one."""

_PRIOR_MEMORY = 0.98
"""The same for what new sequences are believed to be like."""

_PRIOR_WEIGHT = 4.0
"""Trials that the prior counts for in a new sequence."""

_REST = 0.005
"""Share of bad experience that each step without drafts makes forget: they are tried again, seldom."""

_DOUBT = 0.001
"""The same for the measured cost of steps with drafts: one hiccup must not end all drafting for ever."""

_THRESHOLDS = np.array([0.9, 0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03])[:, None]
"""A draft token is worth it when it survives with at least such a probability: the candidates."""

_START_GAIN = 1.15
_STOP_GAIN = 1.08
"""Drafting begins when it promises so many times the speed without, and ends when it promises less."""

_RISE, _FALL = 0.1, 0.5
"""Weight of a measurement above and below what was expected: other work on the machine only ever delays."""

_FIRST_PLAIN_STEPS = 3
"""Steps without drafts at every new size of the batch, before the first with."""

_MEASURE_EVERY_STEPS = 96
"""After so many steps with drafts, one without: to know what that takes."""

_FIRST_GUESS = 0.05
"""What a draft token per sequence is thought to add to a step before it was ever measured."""

_FIXED_SHARE = 0.5
"""Of what drafts add to a step, so much is there with the first: where only longer ones were measured."""

_TRIAL_STEPS = 8
"""Steps with drafts before they are judged as a whole."""

_JUDGE_MEMORY = 0.95
"""Weight that older steps keep in that."""

_LEAST_GAIN, _GOOD_GAIN = 0.95, 1.1
"""Drafts rest when they gave so many times the speed without, and are trusted anew when they gave more."""

_SHORT_REST_STEPS, _LONG_REST_STEPS = 48, 1024
"""For so many steps at first, and twice as many every other time."""


@dataclass(slots=True)
class Acceptance:
    """How likely a draft token is accepted when all before it were; for one sequence and drafter."""

    tried: float = _PRIOR_WEIGHT
    accepted: float = 0.7 * _PRIOR_WEIGHT
    memory: float = _MEMORY

    def child(self) -> Acceptance:
        """A start for a new sequence."""
        return Acceptance(_PRIOR_WEIGHT, _PRIOR_WEIGHT * self.rate)

    @property
    def rate(self) -> float:
        """Between 0 and 1."""
        return self.accepted / self.tried

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from one verification; tokens behind the first wrong one were not tried."""
        self.tried = self.memory * self.tried + min(num_drafted, num_accepted + 1)
        self.accepted = self.memory * self.accepted + num_accepted

    def rest(self) -> None:
        """Nothing was drafted: slowly forget why."""
        self.accepted += _REST * (self.tried - self.accepted)


def prior_acceptance() -> Acceptance:
    """What is believed of a drafter's new sequences, before anything is known."""
    return Acceptance(memory=_PRIOR_MEMORY)


class StepCosts:
    """Measured times of steps that only decode, by number of sequences and of draft tokens."""

    def __init__(self) -> None:
        self._plain_s: dict[int, float] = {}  # by size of the batch
        self._drafted: dict[
            int, dict[int, tuple[float, float]]
        ] = {}  # … and of K: mean K, times a plain step
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
            for key, (mean, ratio) in by_drafts.items():
                by_drafts[key] = (mean, ratio + _DOUBT * (1.0 - ratio))
        elif plain_s:
            self._since_plain[size] += 1
            by_drafts = self._drafted.setdefault(size, {})
            mean, ratio = by_drafts.get(_size(num_drafts), (float(num_drafts), 0.0))
            mean += _RISE * (num_drafts - mean)
            by_drafts[_size(num_drafts)] = (mean, _blend(ratio, time_s / plain_s))

    def longest(self, num_sequences: int) -> float:
        """Draft tokens that a step may have for what is known: lengths are felt for, not leapt at."""
        known = self._drafted.get(_size(num_sequences), {}).values()
        return max(4.0, num_sequences, *(4.0 * mean for mean, _ in known))

    def wants_plain(self, num_sequences: int) -> bool:
        """True when the next step should have no drafts, to measure what that takes."""
        size = _size(num_sequences)
        is_known = self._num_plain.get(size, 0) >= _FIRST_PLAIN_STEPS
        return not is_known or self._since_plain[size] >= _MEASURE_EVERY_STEPS

    def ratios(self, num_sequences: int, num_drafts: np.ndarray) -> np.ndarray:
        """How many times a plain step one with so many drafts takes."""
        points = sorted(self._drafted.get(_size(num_sequences), {}).values())
        if not points:
            guess: np.ndarray = 1.0 + num_drafts * (_FIRST_GUESS / num_sequences)
            return guess
        mean, ratio = points[-1]
        beyond = np.maximum(num_drafts - mean, 0.0) * max(0.0, (ratio - 1.0) / mean)
        first = 1.0 + _FIXED_SHARE * max(0.0, points[0][1] - 1.0)
        means, known = zip((0.0, first), *points, strict=True)
        found: np.ndarray = np.interp(num_drafts, means, np.maximum.accumulate(known)) + beyond
        return np.where(num_drafts > 0, found, 1.0)


class Balance:
    """What drafts have given and taken at one size of the batch, both in steps without."""

    __slots__ = ("_gained", "_next_rest_steps", "_num_steps", "_plain_s", "_rest_steps", "_spent")

    def __init__(self) -> None:
        self._plain_s = 0.0
        self._gained = self._spent = 0.0
        self._num_steps = 0
        self._rest_steps = 0
        self._next_rest_steps = _SHORT_REST_STEPS

    @property
    def is_resting(self) -> bool:
        """Whether drafts have not paid of late."""
        return self._rest_steps > 0

    def observe_plain(self, time_s: float) -> None:
        """A step without drafts."""
        self._rest_steps = max(0, self._rest_steps - 1)
        old = self._plain_s
        self._plain_s = old + _RISE * (min(time_s, 1.5 * old) - old) if old else time_s

    def observe(self, gain: float, time_s: float) -> None:
        """A step with drafts that gave `gain` times the tokens of one without."""
        if not self._plain_s:
            return
        self._gained = _JUDGE_MEMORY * self._gained + gain
        self._spent = _JUDGE_MEMORY * self._spent + min(time_s / self._plain_s, 2.0 * gain)
        self._num_steps += 1
        if self._num_steps < _TRIAL_STEPS:
            return
        if self._gained < _LEAST_GAIN * self._spent:
            self._rest_steps = self._next_rest_steps
            self._next_rest_steps = min(2 * self._rest_steps, _LONG_REST_STEPS)
            self._gained = self._spent = 0.0
            self._num_steps = 0
        elif self._gained > _GOOD_GAIN * self._spent:
            self._next_rest_steps = _SHORT_REST_STEPS


class LengthPolicy:
    """Chooses draft lengths for a batch."""

    def __init__(self, *, is_adaptive: bool = True) -> None:
        self.costs = StepCosts()
        self._balances: dict[int, Balance] = {}  # by size of the batch
        self._is_adaptive = is_adaptive
        self._is_drafting = False

    def choose(
        self,
        acceptances: list[Acceptance],
        limits: list[int],
        num_running: int,
        widths: list[float] | None = None,
    ) -> list[int]:
        """Draft tokens for each of these sequences, out of `num_running` that decode.

        `widths`: how many tokens each one's drafts have per level; None: 1, there are no trees.
        """
        if not self._is_adaptive:
            return list(limits)
        if not acceptances:
            return []
        best = np.zeros(len(limits), dtype=np.int64)
        num_sequences = max(num_running, len(limits))
        rates = [min(a.rate, 0.99) for a in acceptances]
        promise = 1.0 + sum(rate / (1.0 - rate) for rate in rates) / num_sequences
        if promise >= self._least_gain and not self._must_be_plain(num_sequences):
            best = self._best(np.array(rates), np.array(limits), num_sequences, np.array(widths or 1.0))
        else:
            self._is_drafting = False
        for acceptance, k in zip(acceptances, best.tolist(), strict=True):
            if k == 0:
                acceptance.rest()
        return best.tolist()

    def judge(self, num_sequences: int, num_drafts: int, num_accepted: int, time_s: float) -> None:
        """A step that only decoded has taken so long, and kept so many of its draft tokens."""
        balance = self._balances.setdefault(_size(num_sequences), Balance())
        if num_drafts:
            balance.observe(1.0 + num_accepted / num_sequences, time_s)
        else:
            balance.observe_plain(time_s)

    @property
    def _least_gain(self) -> float:
        return _STOP_GAIN if self._is_drafting else _START_GAIN

    def _must_be_plain(self, num_sequences: int) -> bool:
        """Drafts are being measured against steps without, or have not paid."""
        balance = self._balances.get(_size(num_sequences))
        return self.costs.wants_plain(num_sequences) or (balance is not None and balance.is_resting)

    def _best(
        self, rates: np.ndarray, limits: np.ndarray, num_sequences: int, widths: np.ndarray
    ) -> np.ndarray:
        rates = rates.clip(min=0.01)
        lengths = np.minimum(np.floor(np.log(_THRESHOLDS) / np.log(rates) + 1e-9), limits)  # [thresholds, B]
        # Where that is more than can be foreseen, all sequences get the same share.
        share = self.costs.longest(num_sequences) // len(limits)
        too_long = (lengths * widths).sum(axis=1, keepdims=True) > share * len(limits)
        most = share if widths.ndim == 0 else np.maximum(share // widths, 1.0)
        lengths = np.where(too_long, np.minimum(lengths, most), lengths)
        gains = (rates * (1 - rates**lengths) / (1 - rates)).sum(axis=1)
        num_tokens = (lengths * widths).sum(axis=1)
        speedups = (1 + gains / num_sequences) / self.costs.ratios(num_sequences, num_tokens)
        choice = int(speedups.argmax())
        self._is_drafting = bool(speedups[choice] >= self._least_gain)
        best = lengths[choice] if self._is_drafting else np.zeros(len(limits))
        return np.asarray(best, dtype=np.int64)


def _size(count: int) -> int:
    """Which order of magnitude: half a power of two each."""
    return int(2 * math.log2(count) + 1e-9) if count > 0 else 0


def _blend(old: float, new: float) -> float:
    """Smoothed value that starts at the first; a hiccup counts as half as much again at most."""
    if old == 0.0 or new < old:
        return new if old == 0.0 else old + _FALL * (new - old)
    return old + _RISE * (min(new, 1.5 * old) - old)
