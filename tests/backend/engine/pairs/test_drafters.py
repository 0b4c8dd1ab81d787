"""Every drafter with every other feature, on the embedded model that has it, against the plain path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.backend.engine.pairs.cell import check
from tests.backend.engine.pairs.drafters import DRAFTERS, PAIRS
from tests.backend.engine.pairs.features import ADAPTER, GRAMMAR, Feature
from tests.backend.engine.pairs.stage import Stage

# A schema binds an adapter's answers through drafts as well.
TRIPLES = [(each, ADAPTER, GRAMMAR) for each in DRAFTERS if each.name in ("draft_model", "eagle")]
CELLS = [*PAIRS, *TRIPLES]


@pytest.mark.parametrize("features", CELLS, ids=[" + ".join(f.name for f in cell) for cell in CELLS])
def test_the_answer_is_that_of_the_plain_path(
    stage_of: Callable[[str], Stage], features: tuple[Feature, ...]
) -> None:
    check(stage_of(features[0].model), features)
