"""What is known of a drafter and its sequences: how often its tokens are accepted, place by place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MEMORY = 0.9
"""Weight that older verifications of a sequence keep with each new one."""

_PRIOR_MEMORY = 0.98
"""The same for what new sequences are believed to be like."""

_STRETCH_MEMORY = 0.96
"""What is left, a token later, of the knowledge that a sequence is harder than others."""

_GUESS_WEIGHT, _PRIOR_WEIGHT = 4.0, 12.0
"""Trials that the prior counts for in a new sequence: at first, and when it rests on so many itself."""

_NUM_PLACES, _PLACE_MEMORY, _PLACE_WEIGHT = 32, 0.995, 3.0
"""Places of a draft that are told apart; weight that older drafts keep there; how many expected failures, or
drafts, what is true of the place before counts for."""


class Places:
    """What a drafter does at each place of its drafts: how often it fails, and how many tokens it gives.

    Texts have easy and hard stretches: where the first tokens were right, the next ones fail less often than
    the mean says, and long drafts are worth more. Chains may end early; trees have several tokens a level.
    """

    def __init__(self) -> None:
        self._expected = [0.0] * _NUM_PLACES  # failures, as the sequences' rates said
        self._failed = [0.0] * _NUM_PLACES
        self._asked = [0.0] * _NUM_PLACES
        self._given = [0.0] * _NUM_PLACES

    def observe(self, rate: float, num_drafted: int, num_accepted: int) -> None:
        """Learn from one verification of a sequence whose drafts were thought to be accepted at this rate."""
        for place in range(min(num_drafted, num_accepted + 1, _NUM_PLACES)):
            self._expected[place] = _PLACE_MEMORY * self._expected[place] + (1.0 - rate)
            self._failed[place] = _PLACE_MEMORY * self._failed[place] + (place == num_accepted)

    def observe_sizes(self, sizes: Sequence[int], num_asked: int) -> None:
        """Learn how many tokens a draft had at each place, of which so many were asked for."""
        for place in range(min(num_asked, _NUM_PLACES)):
            given = sizes[place] if place < len(sizes) else 0
            self._asked[place] = _PLACE_MEMORY * self._asked[place] + 1.0
            self._given[place] = _PLACE_MEMORY * self._given[place] + given

    def failures(self, num_places: int) -> list[float]:
        """Found by expected failures, place by place; one that is hardly known is like the one before."""
        return _ratios(self._failed, self._expected, num_places)

    def sizes(self, num_places: int) -> list[float]:
        """Tokens that a draft has at each place, on average over those that are asked for it."""
        return _ratios(self._given, self._asked, num_places)


def _ratios(found: list[float], expected: list[float], num_places: int) -> list[float]:
    ratios, last = [], 1.0
    for some, of in itertools.islice(zip(found, expected, strict=True), num_places):
        last = (some + _PLACE_WEIGHT * last) / (of + _PLACE_WEIGHT)
        ratios.append(last)
    return ratios + [last] * (num_places - len(ratios))


@dataclass(slots=True)
class Acceptance:
    """How likely a draft token is accepted when all before it were; for one sequence and drafter."""

    tried: float = _GUESS_WEIGHT
    accepted: float = 0.7 * _GUESS_WEIGHT
    memory: float = _MEMORY
    places: Places = field(default_factory=Places)  # of the drafter: its sequences share them

    def child(self) -> Acceptance:
        """A start for a new sequence."""
        weight = min(self.tried, _PRIOR_WEIGHT)
        return Acceptance(weight, weight * self.rate, places=self.places)

    @property
    def rate(self) -> float:
        """Between 0 and 1."""
        return self.accepted / self.tried

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from one verification; tokens behind the first wrong one were not tried."""
        self.tried = self.memory * self.tried + min(num_drafted, num_accepted + 1)
        self.accepted = self.memory * self.accepted + num_accepted

    def drift(self, usual_rate: float, num_tokens: int) -> None:
        """Nothing was drafted for so many tokens: a hard stretch may have ended, as they do elsewhere."""
        gap = usual_rate - self.rate
        if gap > 0.0:
            self.accepted += (1.0 - _STRETCH_MEMORY**num_tokens) * gap * self.tried

    def rest(self, share: float) -> None:
        """Nothing was drafted: slowly forget why."""
        self.accepted += share * (self.tried - self.accepted)


def prior_acceptance() -> Acceptance:
    """What is believed of a drafter's new sequences, before anything is known."""
    return Acceptance(memory=_PRIOR_MEMORY)


def survivals(acceptances: Sequence[Acceptance], limits: Sequence[int]) -> Floats:
    """How likely a draft token is accepted, and all before it: [n, longest limit], 0 beyond one's own."""
    longest = max(limits)
    failures = _by_sequence(acceptances, [drafter.failures(longest) for drafter in _drafters(acceptances)])
    rates = np.array([acceptance.accepted / acceptance.tried for acceptance in acceptances])
    accepted = 1.0 - (1.0 - _probable(rates))[:, None] * failures
    likely = np.multiply.accumulate(_probable(accepted), axis=1)
    if min(limits) < longest:
        likely[np.arange(longest) >= np.array(limits)[:, None]] = 0.0
    return likely


def sizes(acceptances: Sequence[Acceptance], longest: int) -> Floats:
    """Tokens that a draft has at each place, on average: [n or, where all are alike, 1, longest]."""
    return _by_sequence(acceptances, [drafter.sizes(longest) for drafter in _drafters(acceptances)])


def _probable(values: Floats) -> Floats:
    """Nothing is certain. (np.clip takes three times as long.)"""
    return np.minimum(np.maximum(values, 0.01), 0.99)


def _drafters(acceptances: Sequence[Acceptance]) -> list[Places]:
    return list({id(a.places): a.places for a in acceptances}.values())


def _by_sequence(acceptances: Sequence[Acceptance], by_drafter: list[list[float]]) -> Floats:
    """A row for each sequence, its drafter's; a single one where there is one drafter."""
    rows = np.array(by_drafter)
    if len(rows) == 1:
        return rows
    numbers = {id(drafter): number for number, drafter in enumerate(_drafters(acceptances))}
    return rows[[numbers[id(acceptance.places)] for acceptance in acceptances]]
