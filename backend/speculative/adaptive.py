"""How many tokens to draft: as many as measured acceptance and step times make worth it, down to 0.

With acceptance p_j at place j, k drafts give 1 + p_1 + p_1 p_2 + … + p_1…p_k tokens; p_j is what the
sequence's own rate makes expect, corrected by how often the drafter failed at that place. What a step with
K drafts takes, compared with one without, is measured for the batch size at hand. Lengths are those that
promise most tokens per second, and 0 unless that is clearly more than without. All figures are learned all
the time. Of trees, lengths are depths, p is that of a level, and each level costs as many drafts as the
trees before had nodes for it.
A drafter may give less than it is asked for: what it is asked for is what is judged and what is chosen.
Where many sequences decode, drafts for all of them would be dear to try: few get a level at first, then twice
as many, as long as what these take lets hope that a level for everybody pays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from backend.speculative.acceptance import Acceptance, Floats, sizes, survivals
from backend.speculative.balance import Balance
from backend.speculative.step_costs import FIRST_DRAFTED_STEPS, StepCosts, size_of

Bools = NDArray[np.bool_]

_REST = 0.002
"""Share of bad experience that is forgotten in each step in which those who ask get none, where drafts double
a step's time: they are tried again, seldom, and the more often the less a trial costs."""

_LEAST_TRIAL_COST = 0.2
"""In plain steps; what a trial is thought to cost at least."""

_THRESHOLDS = np.array((0.9, 0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03))[:, None, None]
"""A draft token is worth it when it survives with at least such a probability: the candidates."""

_START_GAIN = 1.1
_STOP_GAIN = 1.04
"""Drafting begins when it promises so many times the speed without, and ends when it promises less."""

_TRIAL_GAIN = 0.95
"""What drafts must promise until they were judged as a whole: a few verifications are often unlucky ones."""


class LengthPolicy:
    """Chooses draft lengths for a batch."""

    def __init__(self, *, is_adaptive: bool = True) -> None:
        self.costs = StepCosts()
        self._balances: dict[int, Balance] = {}  # by size of the batch
        self.forgotten = 0.0  # share of what was known of those who got no drafts last
        self._passed_steps = 0  # without drafts, since somebody asked
        self._forgetting_steps = 0  # as many when somebody asked in the present step; 0: nobody has
        self._tried: dict[int, tuple[int, int]] = {}  # by size: how many sequences had some, in so many steps
        self._is_adaptive = is_adaptive
        self._is_drafting = False
        self._is_partial = False  # few of those who may have drafts got some last

    def begin_step(self) -> None:
        """Somebody will ask, perhaps several times: each time for other drafters."""
        self._is_partial = False
        self._forgetting_steps = 0

    def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
        """Places of each of these sequences' drafts, out of `num_running` that decode."""
        if not self._is_adaptive:
            return list(limits)
        if not acceptances:
            return []
        num_sequences = max(num_running, len(limits))
        if not self._forgetting_steps:
            self._forgetting_steps, self._passed_steps = max(1, self._passed_steps), 0
        if self.plain_steps(num_sequences):
            self._is_drafting = False
            ks = [0] * len(limits)
        else:
            ks = self._worthwhile(acceptances, limits, num_sequences)
        if not all(ks):
            cost = self.costs.curve(num_sequences).at(num_sequences) - 1.0
            self.forgotten = min(1.0, self._forgetting_steps * _REST / max(cost, _LEAST_TRIAL_COST))
            for acceptance, k in zip(acceptances, ks, strict=True):
                if k == 0:
                    acceptance.rest(self.forgotten)
        return ks

    def plain_steps(self, num_sequences: int) -> int:
        """So many steps are to be without drafts for sure: to be measured, or because drafts do not pay."""
        balance = self._balances.get(size_of(num_sequences))
        resting = 0 if balance is None else balance.rest_steps
        return max(self.costs.plain_steps_wanted(num_sequences), resting)

    def pass_by(self, num_sequences: int, num_steps: int) -> None:
        """So many steps without drafts went by that nobody measured."""
        balance = self._balances.get(size_of(num_sequences))
        if balance is not None:
            balance.pass_by(num_steps)
        self.costs.pass_by(num_sequences, num_steps)
        self._passed_steps += num_steps

    def judge(self, num_sequences: int, num_drafts: int, num_accepted: int, time_s: float) -> float:
        """A step that only decoded has taken so long, and kept so many of its draft tokens.

        Returns how much longer its tokens would have taken in steps without drafts, in seconds.
        """
        balance = self._balances.setdefault(size_of(num_sequences), Balance())
        if num_drafts:
            gain = 1.0 + num_accepted / num_sequences
            size = size_of(num_sequences)
            if self._is_partial and size in self._tried:
                chosen, steps = self._tried[size]
                self._tried[size] = (chosen, steps + 1)
            return balance.observe(gain, time_s, is_partial=self._is_partial)
        balance.observe_plain(time_s)
        self._passed_steps += 1
        return 0.0

    def _least_gain(self, num_sequences: int) -> float:
        balance = self._balances.get(size_of(num_sequences))
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
        longest = self.costs.longest(num_sequences)
        width = float(num_tokens[:, 0].sum()) / len(num_tokens)  # of one level
        if longest < width * num_asked:
            num_chosen = self._num_to_try(int(longest / width), num_asked, num_sequences)
            if num_chosen < num_asked:
                return self._try(num_chosen, likely[:, 0], width, num_sequences)
        chosen = likely >= _THRESHOLDS  # [thresholds, n, places]
        tokens = _totals(chosen, num_tokens)
        share = longest // num_asked
        too_many = tokens > share * num_asked
        if too_many.any():
            # More than can be foreseen: all sequences get the same share, but one level, however wide.
            is_in_share = np.add.accumulate(num_tokens, axis=1) <= share
            is_in_share[:, 0] = True
            chosen[too_many] &= is_in_share
            tokens = _totals(chosen, num_tokens)
        curve = self.costs.curve(num_sequences)
        speedups = [
            (1.0 + gain / num_sequences) / curve.at(count)
            for gain, count in zip(_totals(chosen, likely).tolist(), tokens.tolist(), strict=True)
        ]
        best = max(range(len(speedups)), key=speedups.__getitem__)
        self._is_drafting = speedups[best] >= self._least_gain(num_sequences)
        lengths: list[int] = chosen[best].sum(axis=1).tolist()
        return lengths if self._is_drafting else [0] * num_asked

    def _num_to_try(self, foreseen: int, num_asked: int, num_sequences: int) -> int:
        """How many sequences get a level: twice as many when what so many take was measured."""
        size = size_of(num_sequences)
        chosen, steps = self._tried.get(size, (max(1, foreseen), 0))
        if steps >= FIRST_DRAFTED_STEPS:
            chosen, steps = 2 * chosen, 0
        self._tried[size] = (min(chosen, num_asked), steps)
        return chosen

    def _try(self, num_chosen: int, likely: Floats, width: float, num_sequences: int) -> list[int]:
        """A level for each of the newest, if one for everybody, accepted with `likely` [n], may pay."""
        num_asked = len(likely)
        cost = self.costs.curve(num_sequences, is_hopeful=True).at(width * num_asked)
        promise = (1.0 + float(likely.sum()) / num_sequences) / cost
        self._is_drafting = promise >= self._least_gain(num_sequences)
        self._is_partial |= self._is_drafting
        return [0] * (num_asked - num_chosen) + [int(self._is_drafting)] * num_chosen


def _totals(chosen: Bools, values: Floats) -> Floats:
    """Sums of those `values` [n or 1, places] that are `chosen` [thresholds, n, places]: [thresholds]."""
    num_thresholds, num_asked, num_places = chosen.shape
    each = np.broadcast_to(values, (num_asked, num_places)).reshape(-1)
    totals: Floats = chosen.reshape(num_thresholds, -1).astype(np.float64) @ each
    return totals
