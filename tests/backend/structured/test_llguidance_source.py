"""Every kind of grammar, reasoning before it, and specs that cannot be parsed."""

from __future__ import annotations

import json

import pytest

from backend.errors import RequestError
from backend.structured.llguidance_source import MAX_TEXT_CHARS, llguidance_source
from backend.types import GrammarSpec
from gateway.requests.structured_output import MAX_CHOICES
from tests.backend.structured.letters import CLOSE, END, OPEN, allowed, grammar, ids, letters
from tests.backend.structured.schemas import closed


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("regex", "^a[0-9]{2}$", "a42", "a4x"),
        ("regex", r"a\$", "a$", "a"),
        ("choice", '["yes", "no \\"way\\""]', 'no "way"', "nope"),
        ("lark", 'start: "x" | "(" start ")"', "((x))", "(x]"),
        ("lark", 'root ::= "x" | "(" root ")"', "((x))", "(x]"),
        ("json_schema", json.dumps(closed({"a": {"enum": [1, 2]}})), '{"a": 2}', '{"a": 3}'),
        ("json_schema", '{"type": "object"}', '{"b":{"c":[1,null]}}', "[1]"),
    ],
)
def test_each_kind(kind: str, text: str, good: str, bad: str) -> None:
    found = grammar(text, kind=kind)
    assert found.filter_drafts(ids(good)) == len(good)
    for token in ids(good):
        found.advance(token)
    assert found.is_accepting
    assert grammar(text, kind=kind).filter_drafts([*ids(bad), END]) <= len(bad)


def test_as_many_choices_as_are_allowed() -> None:
    choices = [f"choice {i} with some text" for i in range(MAX_CHOICES)]
    found = grammar(json.dumps(choices), kind="choice")
    for token in ids(choices[-1]):
        assert token in allowed(found)
        found.advance(token)
    assert found.is_over and not found.error


def test_a_choice_may_be_empty() -> None:
    found = grammar('["", "a", "a\U0001f600"]', kind="choice")
    assert allowed(found) == {*ids("a"), END}
    found.advance(ord("a"))
    assert allowed(found) == {ids("\U0001f600")[0], END}


def test_white_space_in_json_is_bounded() -> None:
    text = json.dumps(closed({"a": {"type": "integer"}}))
    assert grammar(text, kind="json_schema").filter_drafts(ids('{\n  "a": 1\n}')) == 12
    assert grammar(text, kind="json_schema").filter_drafts(ids("{\n\n\n")) == 2


THOUGHT = "so {1}\n"


@pytest.mark.parametrize("has_tags", [True, False])
@pytest.mark.parametrize("thought", ["inside", "whole"])
def test_reasoning_is_free_text_before_the_constrained_answer(thought: str, has_tags: bool) -> None:
    found = grammar("[0-9]+", letters(has_tags=has_tags), thought=thought)
    opening = [OPEN] if has_tags else ids("<think>")
    if thought == "whole":
        assert allowed(found) <= {OPEN, *ids("\n<")}
        assert found.filter_drafts(opening) == len(opening)
        for token in opening:
            found.advance(token)
    for token in ids(THOUGHT):
        found.advance(token)
    assert END not in allowed(found), "reasoning alone is not an answer"
    for token in [CLOSE] if has_tags else ids("</think>"):
        found.advance(token)
    assert allowed(found) >= set(ids("\n0123456789")) and not found.error
    for token in ids("\n\n42"):
        found.advance(token)
    assert found.is_accepting and allowed(found) == {*ids("0123456789"), END}


HARMONY_CLOSING = "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("[THINK]", "[/THINK]"),
        ("<|channel>thought", "<channel|>"),
        ("<|channel|>analysis<|message|>", HARMONY_CLOSING),
    ],
)
def test_reasoning_is_between_the_models_own_tags(opening: str, closing: str) -> None:
    found = grammar("[0-9]+", letters(), thought="whole", thought_tags=(opening, closing))
    for token in ids(f"{opening}so </think> 1{closing}42"):
        assert token in allowed(found)
        found.advance(token)
    assert found.is_accepting and not found.error


@pytest.mark.parametrize("has_tags", [True, False])
def test_reasoning_is_closed_after_its_budget(has_tags: bool) -> None:
    found = grammar("[0-9]+", letters(has_tags=has_tags), thought="inside", max_thought_tokens=4)
    for token in ids("so {"):
        assert token in allowed(found)
        found.advance(token)
    assert found.filter_drafts(ids("1}")) == 0, "llguidance cannot roll back what it counts"
    assert found.forced_tokens() == []
    assert allowed(found) == {CLOSE}
    found.advance(CLOSE)
    assert allowed(found) == set(ids("\n0123456789")) and not found.error


def test_reasoning_may_end_before_its_budget() -> None:
    found = grammar("[0-9]+", letters(has_tags=True), thought="inside", max_thought_tokens=9)
    for token in [*ids("so"), CLOSE, *ids("42")]:
        assert token in allowed(found)
        found.advance(token)
    assert found.is_accepting


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", "[1]", "object"),
        ("json_schema", "{", "read"),
        ("json_schema", '{"a":' * 5000, "read"),
        ("choice", '{"a": 1}', "array"),
        ("regex", "a" * (MAX_TEXT_CHARS + 1), str(MAX_TEXT_CHARS)),
    ],
)
def test_errors_of_unparsable_specs_name_the_field(kind: str, text: str, words: str) -> None:
    spec = GrammarSpec(kind=kind, text=text, param="guided_json")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=words) as refused:
        llguidance_source(spec, letters())
    assert refused.value.param == "guided_json" and len(str(refused.value)) < 400


@pytest.mark.parametrize("is_exact", [True, False])
def test_unsupported_keywords_are_refused_in_exact_schemas_only(is_exact: bool) -> None:
    schema = json.dumps(closed({"a": {"type": "array", "uniqueItems": True, "items": {"type": "null"}}}))
    if is_exact:
        with pytest.raises(ValueError, match="uniqueItems"):
            grammar(schema, kind="json_schema", is_exact=True)
    else:
        assert grammar(schema, kind="json_schema").filter_drafts(ids('{"a":[null]}')) == 12
