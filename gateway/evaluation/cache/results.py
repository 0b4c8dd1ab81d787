"""What `penstock eval cache` has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gateway.evaluation.cache.replay import Outcome

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PairResult:
    """Scores of the pairs of one source in one file."""

    file: str
    source: str
    labels: NDArray[np.bool_]
    cosines: Array
    probabilities: Array  # of the verifier, whatever guards say
    stopped: NDArray[np.bool_]  # by a guard, or not compared by meaning at all

    @property
    def served(self) -> Array:
        """P where no guard stops the pair, else 0."""
        found: Array = np.where(self.stopped, np.float32(0), self.probabilities)
        return found


@dataclass(frozen=True, slots=True)
class KindResult:
    """Pairs of one kind, and what the cache serves of them at the shipped threshold."""

    file: str
    kind: str
    num_different: int
    num_false: int  # different, and served
    num_same: int
    num_right: int  # the same, and served

    @classmethod
    def of(cls, file: str, kind: str, pairs: Sequence[tuple[bool, bool]]) -> Self:
        """From (whether one answer serves both, whether the cache serves it) of each pair."""
        different = [is_served for is_same, is_served in pairs if not is_same]
        same = [is_served for is_same, is_served in pairs if is_same]
        return cls(file, kind, len(different), sum(different), len(same), sum(same))


@dataclass(frozen=True, slots=True)
class StreamResult:
    """Replays of one file."""

    file: str
    cosine: list[Outcome]
    verifier: list[Outcome]
    cosine_best: Outcome | None  # most hits within the bound
    verifier_best: Outcome | None
    verifier_shipped: Outcome  # at the threshold that the weights carry for the bound
    thresholds: Array  # [n, 2]: for each of FALSE_SHARES the least threshold that keeps it
