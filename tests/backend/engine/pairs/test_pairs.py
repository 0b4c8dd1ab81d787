"""Every pair of the engine's features, on an embedded model in float32 and 16 bits, is as the plain path."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.backend.engine.pairs.cell import check
from tests.backend.engine.pairs.features import FEATURES, Feature
from tests.backend.engine.pairs.stage import INT8_PAGES, PICO_SMALL, Stage

PAIRS = [tuple(dict.fromkeys(pair)) for pair in itertools.combinations_with_replacement(FEATURES, 2)]

IDS = [" + ".join(feature.name for feature in pair) for pair in PAIRS]


@pytest.mark.parametrize("features", PAIRS, ids=IDS)
def test_the_answer_is_that_of_the_plain_path(
    stage_of: Callable[[str], Stage], features: tuple[Feature, ...]
) -> None:
    check(stage_of(PICO_SMALL), features)


@pytest.mark.parametrize("features", PAIRS, ids=IDS)
def test_a_step_is_launched_before_the_last_is_read(
    stage_of: Callable[[str], Stage], features: tuple[Feature, ...]
) -> None:
    check(stage_of(PICO_SMALL), features, is_ahead=True)


@pytest.mark.parametrize("stage_of", [INT8_PAGES], ids=["int8"], indirect=True)
@pytest.mark.parametrize("features", PAIRS[::3], ids=IDS[::3])
def test_pages_of_8_bits_are_read_late_as_well(
    stage_of: Callable[[str], Stage], features: tuple[Feature, ...]
) -> None:
    check(stage_of(PICO_SMALL), features, is_ahead=True)


@pytest.mark.parametrize("features", PAIRS, ids=IDS)
def test_recurrent_states_go_with_all_of_it(hybrid: Stage, features: tuple[Feature, ...]) -> None:
    check(hybrid, features)


@pytest.mark.parametrize("features", PAIRS, ids=IDS)
def test_latents_go_with_all_of_it(latent: Stage, features: tuple[Feature, ...]) -> None:
    check(latent, features)
