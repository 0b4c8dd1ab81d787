"""Every drafter with every other feature, on the embedded model that has it, against the plain path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.backend.engine.pairs.cell import check
from tests.backend.engine.pairs.drafters import DRAFTERS, PAIRS
from tests.backend.engine.pairs.features import ADAPTER, GRAMMAR, Feature
from tests.backend.engine.pairs.stage import Stage

# A schema binds an adapter's answers through drafts as well.
TRIPLES = [(each, ADAPTER, GRAMMAR) for each in DRAFTERS if each.name in ("draft_model", "eagle")]
CELLS = [*PAIRS, *TRIPLES]


@pytest.fixture(scope="module")
def stages() -> Iterator[dict[str, Stage]]:
    """By model, made when first asked for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[str, Stage] = {}
    yield found
    for stage in found.values():
        stage.close()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("features", CELLS, ids=[" + ".join(f.name for f in cell) for cell in CELLS])
def test_the_answer_is_that_of_the_plain_path(
    stages: dict[str, Stage], features: tuple[Feature, ...]
) -> None:
    model = features[0].model
    if model not in stages:
        stages[model] = Stage(model)
    check(stages[model], features)
