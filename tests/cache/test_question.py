"""Identity: whatever can change which answer is right is in the partition or in the key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.question import Question, normalised, read_question

USER = {"role": "user", "content": "What is the capital of France?"}
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, USER]}
OWNER = ("tenant", "alice", "m", "revision", "")


def question(body: dict[str, Any] | None = None, owner: tuple[str, ...] = OWNER) -> Question:
    return read_question(body or BODY, "alice", owner)


@pytest.mark.parametrize(
    "changed",
    [
        BODY | {"messages": [{"role": "system", "content": "Be long."}, USER]},
        BODY | {"messages": [USER]},
        BODY | {"messages": [*BODY["messages"][:1], USER, {"role": "assistant", "content": "Paris."}, USER]},
        BODY | {"messages": [*BODY["messages"][:1], USER | {"name": "bob"}]},
        BODY | {"temperature": 0.5},
        BODY | {"max_tokens": 5},
        BODY | {"seed": 1},
        BODY | {"tools": [{"type": "function", "function": {"name": "f"}}]},
        BODY | {"response_format": {"type": "json_object"}},
        BODY | {"reasoning_effort": "none"},
        BODY | {"a_field_of_next_year": True},
    ],
)
def test_whatever_changes_answers_is_another_partition(changed: dict[str, Any]) -> None:
    assert question(changed).partition != question().partition


@pytest.mark.parametrize("place", range(len(OWNER)))
def test_every_part_of_the_owner_is_a_wall(place: int) -> None:
    other = (*OWNER[:place], "another", *OWNER[place + 1 :])
    assert question(owner=other).partition != question().partition


def test_parts_of_the_owner_cannot_be_moved_into_each_other() -> None:
    assert question(owner=("ab", "c")).partition != question(owner=("a", "bc")).partition


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True, "stream_options": {"include_usage": True}},
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s"},
        {"temperature": None},
        {"prediction": {"type": "content", "content": "Paris"}},
    ],
)
def test_what_changes_no_answer_is_the_same_key(fields: dict[str, Any]) -> None:
    assert question(BODY | fields) == question()


def test_the_last_turn_is_in_the_key_alone() -> None:
    other = BODY | {"messages": [BODY["messages"][0], {"role": "user", "content": "And of Spain?"}]}
    assert question(other).partition == question().partition
    assert question(other).key != question().key
    assert question(other).text == "And of Spain?"


def test_one_text_part_is_a_text() -> None:
    parts = [{"type": "text", "text": USER["content"]}]
    messages = [BODY["messages"][0], {"role": "user", "content": parts}]
    assert question(BODY | {"messages": messages}) == question()


@pytest.mark.parametrize(
    "last",
    [
        {"role": "tool", "tool_call_id": "1", "content": "18 degrees"},
        {"role": "assistant", "content": "Paris is"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": ""},
    ],
)
def test_anything_but_plain_user_text_is_only_found_exactly(last: dict[str, Any]) -> None:
    found = question(BODY | {"messages": [BODY["messages"][0], last]})
    assert found.text == ""
    other = question(BODY | {"messages": [BODY["messages"][0], last | {"content": "another"}]})
    assert other.key != found.key and other.partition != found.partition


def test_history_has_the_earlier_user_turns() -> None:
    turns = [USER, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And its river?"}]
    assert question(BODY | {"messages": turns}).history == (USER["content"],)


@pytest.mark.parametrize(
    ("text", "same"),
    [("  What is it? ", "What is it?"), ("cafe\u0301", "café"), ("a\r\nb", "a\nb")],
)
def test_invisible_differences_are_normalised(text: str, same: str) -> None:
    assert normalised(text) == normalised(same)


@pytest.mark.parametrize(
    ("text", "other"), [("if a:\n  b\nc", "if a:\n  b\n  c"), ("US", "us"), ("co-op", "coop"), ("1 0", "10")]
)
def test_visible_differences_are_kept(text: str, other: str) -> None:
    assert normalised(text) != normalised(other)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
)
_BODIES = st.fixed_dictionaries(
    {
        "system": st.text(),
        "history": st.lists(st.text(), max_size=3),
        "last": st.text(min_size=1),
        "field": _JSON,
    }
)


def _body(parts: dict[str, Any]) -> dict[str, Any]:
    turns = [{"role": "user", "content": text} for text in [*parts["history"], parts["last"]]]
    return {"messages": [{"role": "system", "content": parts["system"]}, *turns], "field": parts["field"]}


@given(_BODIES, _BODIES)
def test_two_requests_share_a_partition_only_if_they_differ_in_the_last_turn_alone(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    a, b = question(_body(one)), question(_body(other))
    # repr: 1 is not True.
    same = all(repr(one[name]) == repr(other[name]) for name in ("system", "history", "field"))
    assert (a.partition == b.partition) == same
    assert (a.key == b.key) == (same and normalised(one["last"]) == normalised(other["last"]))
