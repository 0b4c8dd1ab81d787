"""What steps take with drafts and without, by number of sequences and of draft tokens."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from dataclasses import dataclass

_DOUBT = 0.001
"""Share of the measured cost of drafts that is forgotten in a plain step: one hiccup must not end drafting
for ever."""

_RISE, _FALL = 0.1, 0.5
"""Weight of a measurement above and below what was expected: other work on the machine only ever delays."""

_FIRST_PLAIN_STEPS = 3
"""Steps without drafts at every new size of the batch, before the first with."""

FIRST_DRAFTED_STEPS = 2
"""Steps with about as many drafts before it is believed what they take: the very first may only warm up."""

_MEASURE_EVERY_STEPS, _MEASURE_WITHIN_STEPS = 96, 4
"""After so many steps with drafts, one without: to know what that takes. A grammar may force tokens in each
of so many, though: then the same again later."""

_FIRST_SHARE, _FIRST_LEAST = 0.125, 4.0
"""Draft tokens of the very first step that has some, per sequence, but at least so many."""

_FIRST_GUESS = 0.05
"""What a draft token per sequence is thought to add to a step before it was ever measured."""

_FIXED_SHARE = 0.5
"""Of what drafts add to a step, so much is there with the first: where only longer ones were measured."""

_SLOPE_BEYOND = 0.8
"""More than were measured add this much of what those took each: lengths are tried rather than shunned."""


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
        size = size_of(num_sequences)
        plain_s = self._plain_s.get(size, 0.0)
        if num_drafts == 0:
            self._plain_s[size] = blend(plain_s, time_s)
            self._num_plain[size] = self._num_plain.get(size, 0) + 1
            self._since_plain[size] = 0
            self.pass_by(num_sequences, 1)
        elif plain_s:
            self._since_plain[size] += 1
            by_drafts = self._drafted.setdefault(size, {})
            mean, ratio, count = by_drafts.get(size_of(num_drafts), (float(num_drafts), math.inf, 0))
            mean += _RISE * (num_drafts - mean)
            new = time_s / plain_s
            ratio = min(ratio, new) if count < FIRST_DRAFTED_STEPS else blend(ratio, new)
            by_drafts[size_of(num_drafts)] = (mean, ratio, count + 1)

    def pass_by(self, num_sequences: int, num_steps: int) -> None:
        """So many steps without drafts: what those with drafts take was longer ago."""
        by_drafts = self._drafted.get(size_of(num_sequences), {})
        for key, (mean, ratio, count) in by_drafts.items():
            by_drafts[key] = (mean, 1.0 + (ratio - 1.0) * (1.0 - _DOUBT) ** num_steps, count)

    def longest(self, num_sequences: int) -> float:
        """Draft tokens that a step may have for what is known: lengths are felt for, not leapt at."""
        points = self._known(num_sequences)
        return 2.0 * points[-1][0] if points else max(_FIRST_LEAST, _FIRST_SHARE * num_sequences)

    def plain_steps_wanted(self, num_sequences: int) -> int:
        """So many of the next steps should have no drafts, to measure what that takes."""
        size = size_of(num_sequences)
        missing = _FIRST_PLAIN_STEPS - self._num_plain.get(size, 0)
        if missing <= 0:
            rounds, step = divmod(self._since_plain[size], _MEASURE_EVERY_STEPS)
            return int(rounds > 0 and step < _MEASURE_WITHIN_STEPS)
        return missing

    def curve(self, num_sequences: int, *, is_hopeful: bool = False) -> CostCurve:
        """What is known of steps with so many sequences.

        `is_hopeful`: where more than were measured add what these have shown, instead of rather too much. Of
        a single number nothing is shown: all of it may be there with the first.
        """
        points = self._known(num_sequences)
        if not points:
            return CostCurve([0.0], [1.0], _FIRST_GUESS / num_sequences)
        mean, ratio = points[-1]
        first = 1.0 + _FIXED_SHARE * max(0.0, points[0][1] - 1.0)
        means, ratios = zip((0.0, first), *points, strict=True)
        # Fewer drafts take no longer than more; what is measured too high is more common than too low.
        rising = list(itertools.accumulate(reversed(ratios), min))[::-1]
        slope = max(0.0, _SLOPE_BEYOND * (ratio - 1.0) / mean)
        if is_hopeful:
            fewest, least = points[0]
            shown = (ratio - least) / (mean - fewest) if len(points) > 1 else 0.0
            slope = min(slope, max(shown, _FIRST_GUESS / num_sequences))
        return CostCurve(list(means), rising, slope)

    def _known(self, num_sequences: int) -> list[tuple[float, float]]:
        """(Drafts, times a plain step) that are believed, fewest drafts first."""
        found = self._drafted.get(size_of(num_sequences), {}).values()
        return sorted((mean, ratio) for mean, ratio, count in found if count >= FIRST_DRAFTED_STEPS)


@functools.cache
def size_of(count: int) -> int:
    """Which order of magnitude: half a power of two each."""
    return int(2 * math.log2(count) + 1e-9) if count > 0 else 0


def blend(old: float, new: float) -> float:
    """Smoothed value that starts at the first; a hiccup counts as half as much again at most."""
    if old == 0.0 or new < old:
        return new if old == 0.0 else old + _FALL * (new - old)
    return old + _RISE * (min(new, 1.5 * old) - old)
