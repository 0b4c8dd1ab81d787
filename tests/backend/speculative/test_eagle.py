from __future__ import annotations

from pathlib import Path

import pytest

from backend.speculative.eagle import CATCH_UP_TOKENS, EagleDrafter
from tests.backend.speculative.head_cases import (
    Pair,
    make_pair,
    say_it_when_preempted_in_small_chunks,
    say_what_the_reference_says,
)
from tests.backend.speculative.model_targets import new_engine, requests


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("target"), "eagle")


@pytest.fixture(autouse=True)
def whole_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was not trained is never sure."""
    monkeypatch.setattr("backend.speculative.eagle.MIN_PATH_PROBABILITY", 0.0)


def test_says_what_the_reference_says(pair: Pair) -> None:
    say_what_the_reference_says(pair)


def test_says_it_on_a_dense_target(tmp_path: Path) -> None:
    say_what_the_reference_says(make_pair(tmp_path, "eagle", "qwen3", tie_word_embeddings=False))


def test_says_it_when_preempted_in_small_chunks(pair: Pair) -> None:
    say_it_when_preempted_in_small_chunks(pair)


def test_who_is_far_behind_catches_up_in_parts(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.speculative.eagle.CATCH_UP_TOKENS", 20)
    assert CATCH_UP_TOKENS > 1000
    engine, recording = new_engine(pair.model, "eagle", pair.folder)
    assert recording is not None and isinstance(recording.inner, EagleDrafter)
    for request in requests():
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert any(not said.draft for said in recording.said)
    pair.check(recording.said, 30)
    assert not recording.inner._good


def test_a_chain_ends_where_the_head_is_not_sure(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.speculative.eagle.MIN_PATH_PROBABILITY", 1.1)
    engine, recording = new_engine(pair.model, "eagle", pair.folder)
    assert recording is not None
    for request in requests():
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert {len(said.draft) for said in recording.said} == {1}
