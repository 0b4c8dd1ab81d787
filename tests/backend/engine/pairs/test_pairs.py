"""Every pair of the engine's features, on an embedded model in float32, against the plain path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from tests.backend.engine.pairs.cell import check
from tests.backend.engine.pairs.features import FEATURES, Feature
from tests.backend.engine.pairs.stage import PICO_SMALL, Stage

PAIRS = [tuple(dict.fromkeys(pair)) for pair in itertools.combinations_with_replacement(FEATURES, 2)]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = Stage(PICO_SMALL)
    yield found
    found.close()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("features", PAIRS, ids=[" + ".join(f.name for f in pair) for pair in PAIRS])
def test_the_answer_is_that_of_the_plain_path(stage: Stage, features: tuple[Feature, ...]) -> None:
    check(stage, features)
