from __future__ import annotations

import pytest

from backend.speculative.following import Following
from backend.speculative.mixture_of_attentions import MixtureDrafter
from tests.backend.engine.driving import texts
from tests.backend.speculative.head_cases import (
    Pair,
    make_pair,
    say_it_when_preempted_in_small_chunks,
    say_what_the_reference_says,
)
from tests.backend.speculative.model_targets import new_engine, requests


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("target"), "mixture_of_attentions")


def test_says_what_the_reference_says(pair: Pair) -> None:
    say_what_the_reference_says(pair)


def test_says_it_when_preempted_in_small_chunks(pair: Pair) -> None:
    say_it_when_preempted_in_small_chunks(pair)


class Switch(Following):
    """Rests as long as the test wants."""

    rests = False

    @property
    def is_resting(self) -> bool:
        return self.rests


def test_rests_and_drafts_again_for_those_whose_tokens_it_has_all_read(pair: Pair) -> None:
    asked = requests()
    plain = texts(new_engine(pair.model)[0], asked)
    engine, recording = new_engine(pair.model, pair.name, pair.folder)
    assert recording is not None and isinstance(recording.inner, MixtureDrafter)
    switch = recording.inner.following = Switch()
    switch.rests = True
    assert not recording.inner.wants_layers
    assert texts(engine, asked) == plain
    assert recording.said and not any(said.draft for said in recording.said), "nothing was read"

    switch.rests = False
    recording.said.clear()
    assert texts(engine, asked) == plain
    drafted = {said.request_id for said in recording.said if said.draft}
    assert "2" in drafted, "a single token has no page that was read by nobody"
    assert "0" not in drafted, "its pages are known to the target, and not to the head"
    pair.check(recording.said, 4)


def test_a_rest_between_two_steps_ends_the_drafts_of_the_sequences_under_way(pair: Pair) -> None:
    asked = requests(max_tokens=40)
    plain = texts(new_engine(pair.model)[0], asked)
    engine, recording = new_engine(pair.model, pair.name, pair.folder, prefix_cache=False)
    assert recording is not None and isinstance(recording.inner, MixtureDrafter)
    switch = recording.inner.following = Switch()
    for request in asked[:2]:
        engine.add(request)
    found: dict[str, list[int]] = {request.request_id: [] for request in asked}
    num_steps = 0
    while engine.has_work:
        switch.rests = num_steps == 5
        if num_steps == 8:
            for request in asked[2:]:
                engine.add(request)
        if num_steps == 6:
            recording.said.clear()
        for output in engine.step():
            found[output.request_id] += output.token_ids
        num_steps += 1
    assert list(found.values()) == plain
    assert {said.request_id for said in recording.said if said.draft} == {"2", "3"}
    pair.check(recording.said, 10)
