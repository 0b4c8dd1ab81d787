"""Every drafter with every other feature, on the embedded model that has it, against the plain path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.backend.engine.pairs.cell import check
from tests.backend.engine.pairs.drafters import DRAFTERS, PAIRS
from tests.backend.engine.pairs.features import (
    ADAPTER,
    CANCEL,
    GRAMMAR,
    LOGPROBS,
    PREEMPTION,
    PREFIX_HIT,
    Feature,
)
from tests.backend.engine.pairs.stage import Stage

# A schema binds an adapter's answers through drafts as well.
TRIPLES = [(each, ADAPTER, GRAMMAR) for each in DRAFTERS if each.name in ("draft_model", "eagle")]
CELLS = [*PAIRS, *TRIPLES]
LATE = {
    "draft_model": (PREEMPTION, PREFIX_HIT, GRAMMAR),
    "medusa": (LOGPROBS, ADAPTER),
    "mixture_of_attentions": (CANCEL, PREEMPTION),
}
AHEAD = [(each, other) for each in DRAFTERS for other in LATE.get(each.name, ())]


@pytest.mark.parametrize("features", CELLS, ids=[" + ".join(f.name for f in cell) for cell in CELLS])
def test_the_answer_is_that_of_the_plain_path(
    stage_of: Callable[[str], Stage], features: tuple[Feature, ...]
) -> None:
    check(stage_of(features[0].model), features)


@pytest.mark.parametrize("features", AHEAD, ids=[" + ".join(f.name for f in cell) for cell in AHEAD])
def test_drafts_are_read_with_the_step_that_verifies_them(
    stage_of: Callable[[str], Stage], features: tuple[Feature, ...]
) -> None:
    check(stage_of(features[0].model), features, is_ahead=True)
