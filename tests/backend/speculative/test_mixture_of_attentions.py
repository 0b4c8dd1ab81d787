from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from backend.speculative.drafter import Capture
from backend.speculative.mixture_of_attentions import MixtureDrafter
from backend.types import PAGE_TOKENS, DraftOptions
from tests.backend.engine.driving import texts
from tests.backend.speculative.head_cases import (
    Pair,
    make_pair,
    say_it_when_preempted_in_small_chunks,
    say_what_the_reference_says,
)
from tests.backend.speculative.model_targets import draft_in, new_engine, requests, set_min_path_probability
from tests.backend.speculative.recording import Said

WAYS: dict[str, dict[str, int]] = {
    "compiled": {"head_dim": 16},
    "torch": {},
    "ahead": {},
    "with a layer of the target": {"target_layers": 1},
}


@pytest.fixture(scope="module", params=WAYS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    found = make_pair(tmp_path_factory.mktemp("target"), "mixture_of_attentions", **WAYS[request.param])
    with pytest.MonkeyPatch.context() as patch:
        draft_in(request.param, patch)
        _, recording = new_engine(found.model, found.name, found.folder)
        assert recording is not None and isinstance(recording.inner, MixtureDrafter)
        assert (recording.inner._network.chain is not None) == (request.param in ("compiled", "ahead"))
        assert (recording.inner._roll_outs is not None) == (request.param == "ahead")
        yield found


@pytest.fixture(autouse=True)
def whole_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was not trained is never sure."""
    set_min_path_probability(monkeypatch, 0.0)


def test_says_what_the_reference_says(pair: Pair) -> None:
    say_what_the_reference_says(pair)


def test_says_it_when_preempted_in_small_chunks(pair: Pair) -> None:
    say_it_when_preempted_in_small_chunks(pair)


class Switch(Capture):
    """Is off as long as the test wants."""

    is_off = False

    @property
    def is_on(self) -> bool:
        return not self.is_off

    @is_on.setter
    def is_on(self, value: bool) -> None:
        pass


def drafts_after_a_rest(pair: Pair, garbage: float) -> list[Said]:
    """Drafts for prompts that the target knows and the head has not captured: its memory is garbage."""
    asked = requests()
    plain = texts(new_engine(pair.model)[0], asked)
    engine, recording = new_engine(pair.model, pair.name, pair.folder)
    assert recording is not None and isinstance(recording.inner, MixtureDrafter)
    drafter = recording.inner
    switch = drafter.capture = Switch(time.perf_counter)
    switch.is_off = True
    assert texts(engine, asked) == plain
    assert not recording.said, "nothing was read, so it is not asked"
    drafter._storage.memory[0].fill_(garbage)
    switch.is_off = False
    recording.said.clear()
    assert texts(engine, asked) == plain
    return recording.said


def test_drafts_do_without_what_was_not_read(pair: Pair) -> None:
    said = drafts_after_a_rest(pair, 0.0)
    assert {each.request_id for each in said if each.draft} == {"0", "1", "2", "3"}
    pair.check([each for each in said if each.request_id == "2"], 4)  # its one token was computed again
    assert drafts_after_a_rest(pair, 100.0) == said


def test_a_rest_leaves_what_was_read_before(pair: Pair) -> None:
    """Prompts that the target knows are known to the head as well, whatever others wrote meanwhile."""
    asked = requests()
    others = [
        msgspec.structs.replace(
            request, prompt_token_ids=request.prompt_token_ids[::-1], request_id=f"{i} backwards"
        )
        for i, request in enumerate(asked)
    ]
    engine, recording = new_engine(pair.model, pair.name, pair.folder)
    assert recording is not None and isinstance(recording.inner, MixtureDrafter)
    switch = recording.inner.capture = Switch(time.perf_counter)
    plain = texts(engine, asked)
    switch.is_off = True
    texts(engine, others)
    switch.is_off = False
    recording.said.clear()
    hits_before = engine.kv.prefix_hit_tokens_total
    assert texts(engine, asked) == plain and engine.kv.prefix_hit_tokens_total > hits_before
    pair.check(recording.said, 10)
    assert all(each.draft for each in recording.said)


def test_when_reading_fails_nothing_counts_as_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, recording = new_engine(pair.model, pair.name, pair.folder)
    assert recording is not None and isinstance(recording.inner, MixtureDrafter)
    drafter = recording.inner
    plain = texts(engine, requests())
    assert drafter._is_captured.any()

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(drafter, "_memorise", fail)
    engine.add(requests()[0])
    while engine.has_work:
        engine.step()
    assert not drafter._is_captured.any()
    assert texts(engine, requests()) == plain
    assert not drafter._is_captured.any()


def test_captures_only_sequences_that_may_ask_for_its_drafts(pair: Pair) -> None:
    asked = requests()
    others = [
        msgspec.structs.replace(request, draft=DraftOptions(drafter="none"), request_id=f"{i} alone")
        for i, request in enumerate(asked)
    ]
    engine, recording = new_engine(pair.model, pair.name, pair.folder, prefix_cache=False)
    assert recording is not None and isinstance(recording.inner, MixtureDrafter)
    drafter = recording.inner
    plain = texts(engine, others)
    assert not drafter.wants_layers and not drafter.capture.step_s
    assert texts(engine, [*asked, *others]) == 2 * plain
    assert drafter._is_captured.any() and not drafter.capture.sequences
    pair.check(recording.said, 30)


def test_after_a_rest_between_two_steps_drafts_come_back_with_the_next_two_pages(pair: Pair) -> None:
    asked = requests(max_tokens=64)
    plain = texts(new_engine(pair.model)[0], asked)
    engine, recording = new_engine(pair.model, pair.name, pair.folder, prefix_cache=False)
    assert recording is not None and isinstance(recording.inner, MixtureDrafter)
    switch = recording.inner.capture = Switch(time.perf_counter)
    for request in asked[:2]:
        engine.add(request)
    found: dict[str, list[int]] = {request.request_id: [] for request in asked}
    num_steps = 0
    while engine.has_work:
        switch.is_off = num_steps == 5
        if num_steps == 8:
            for request in asked[2:]:
                engine.add(request)
        if num_steps == 6:
            recording.said.clear()
        for output in engine.step():
            found[output.request_id] += output.token_ids
        num_steps += 1
    assert list(found.values()) == plain
    for i in ("0", "1"):
        own = [said for said in recording.said if said.request_id == i]
        pages = [(len(said.tokens) - 2) // PAGE_TOKENS for said in own]
        assert pages[0] + 1 < pages[-1]
        assert [bool(said.draft) for said in own] == [page > pages[0] + 1 for page in pages]
    pair.check([said for said in recording.said if said.request_id in ("2", "3")], 10)


def test_a_chain_ends_where_the_head_is_not_sure(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    set_min_path_probability(monkeypatch, 1.1)
    engine, recording = new_engine(pair.model, pair.name, pair.folder)
    assert recording is not None
    assert texts(engine, requests()) == texts(new_engine(pair.model)[0], requests())
    drafts = [each.draft for each in recording.said if each.k > 1 and each.draft]
    assert len(drafts) > 10 and {len(draft) for draft in drafts} == {1}
