"""Every pair of the engine's features on two ranks in float32 is as the plain path of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from backend.config import ParallelConfig
from backend.parallel.shape import WHOLE_TABLES
from tests.backend.engine.pairs.cell import check
from tests.backend.engine.pairs.drafters import DRAFTERS
from tests.backend.engine.pairs.drafters import PAIRS as WITH_DRAFTERS
from tests.backend.engine.pairs.features import (
    ADAPTER,
    CANCEL,
    CHUNKED_PREFILL,
    DRAFTER,
    PREFIX_HIT,
    Feature,
)
from tests.backend.engine.pairs.stage import FLOAT32, PICO_LARGE, Stage
from tests.backend.engine.pairs.test_pairs import PAIRS

DEFAULT = [(ADAPTER, DRAFTER), (ADAPTER, CHUNKED_PREFILL), (PREFIX_HIT, CANCEL)]
"""Each changes KV memory or weights in another way; the others repeat what these tell the ranks."""

SPLIT = {drafter.name for drafter in DRAFTERS if not drafter.name.startswith(WHOLE_TABLES)}
CELLS = [*PAIRS, *(pair for pair in WITH_DRAFTERS if pair[0].name in SPLIT)]
Find = Callable[[str], Stage]


@pytest.fixture(scope="module")
def ranked(stage_of: Find) -> Iterator[Find]:
    """The stage of a model on two ranks; one at a time, as a process is in one group."""
    stages: dict[str, Stage] = {}

    def close() -> None:
        for model in list(stages):
            stages.pop(model).close()

    def find(model: str) -> Stage:
        if model not in stages:
            close()
            dtypes = FLOAT32 | {"parallel": ParallelConfig(tensor=2), "num_threads": 2}
            stages[model] = Stage(model, dtypes, alone=stage_of(model))
        return stages[model]

    yield find
    close()


@pytest.mark.parametrize(
    "features",
    [
        pytest.param(
            cell,
            id=" + ".join(feature.name for feature in cell),
            marks=[] if cell in DEFAULT else pytest.mark.slow,
        )
        for cell in sorted(CELLS, key=lambda cell: cell[0].model == PICO_LARGE)
    ],
)
@pytest.mark.parametrize("stage_of", [FLOAT32], ids=["float32"], indirect=True)
def test_two_ranks_say_what_one_process_says(ranked: Find, features: tuple[Feature, ...]) -> None:
    check(ranked(features[0].model), features)
