"""What `penstock eval cache` has measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.cli.evaluation.cache.replay import Outcome

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PairResult:
    """Scores of the pairs of one source in one file."""

    file: str
    source: str
    labels: NDArray[np.bool_]
    cosines: Array
    probabilities: Array


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
