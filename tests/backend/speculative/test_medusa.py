from __future__ import annotations

import pytest

from tests.backend.speculative.head_cases import (
    Pair,
    make_pair,
    say_it_when_preempted_in_small_chunks,
    say_what_the_reference_says,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("target"), "medusa")


def test_says_what_the_reference_says(pair: Pair) -> None:
    say_what_the_reference_says(pair)


def test_says_it_when_preempted_in_small_chunks(pair: Pair) -> None:
    say_it_when_preempted_in_small_chunks(pair)
