"""What holds in every syntax: calls as templates render them, any cut, hostile texts.

Ten thousand cuts of each, in four minutes: `pytest -m slow tests/gateway/tool_calls/test_syntaxes.py`.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tool_calls.families import SYNTAXES
from gateway.tool_calls.parser import ToolCallParser
from tests.gateway.tool_calls.hostile import hostile
from tests.gateway.tool_calls.pieces import NAMES, cut, cuts, decoded, json_values, parse
from tests.gateway.tool_calls.writers import WRITERS, schemas

names = pytest.mark.parametrize("name", WRITERS)
keys = st.sampled_from(["a", "city", "n_1", "雨", "zzz"])
arguments = st.dictionaries(keys, json_values, max_size=3)
called = st.lists(
    st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3, unique_by=lambda c: c[0]
)
CALLS = [
    ("add", {"a": 5, "s": '{"x": "雨"}', "l": [1.5, {"k": None}], "b": True}),
    ("look_up", {}),
    ("add", {"s": "x" * 300}),
]


@names
@settings(deadline=None, max_examples=12)
@given(made=called, places=cuts, before=st.sampled_from(["", "Let me see.", "1 < 2 <tool>"]))
def test_calls_are_parsed_as_the_template_renders_them(
    name: str, made: list[tuple[str, dict[str, Any]]], places: list[int], before: str
) -> None:
    text = before + WRITERS[name](made)
    shown, found = parse(SYNTAXES[name], cut(text, places), schemas=schemas(made))
    assert (shown.strip(), decoded(found)) == (before, made)


def fuzzed(name: str, count: int) -> None:
    text = f"Well, <b>\n{WRITERS[name](CALLS)}\nand on <tool\n{WRITERS[name](CALLS[:1])}\n that"
    types = schemas(CALLS[:1])
    whole = parse(SYNTAXES[name], [text], schemas=types)
    assert decoded(whole[1]) == [*CALLS, CALLS[0]]
    draw = random.Random(name)
    for _ in range(count):
        places = draw.sample(range(len(text)), draw.randint(0, 12))
        assert parse(SYNTAXES[name], cut(text, places), schemas=types) == whole


@names
def test_any_cut_gives_the_same_calls(name: str) -> None:
    fuzzed(name, 30)


@pytest.mark.slow
@pytest.mark.timeout(600)
@names
def test_ten_thousand_cuts_give_the_same_calls(name: str) -> None:
    fuzzed(name, 10_000)


@names
@pytest.mark.parametrize("hold", [0, 256])
def test_hostile_texts_are_text_or_calls_and_never_an_error(name: str, hold: int) -> None:
    texts = list(hostile(WRITERS[name]))
    assert len(texts) >= 30
    for text in texts:
        whole = parse(SYNTAXES[name], [text], hold_chars=hold)
        pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
        assert parse(SYNTAXES[name], pieces, hold_chars=hold) == whole
        if len(text) < 1000:
            assert parse(SYNTAXES[name], list(text), hold_chars=hold) == whole
        if not whole[1]:
            assert whole[0] == text
        elif hold > len(text):
            assert all(isinstance(json.loads(found), dict) for _, found in whole[1])


@names
def test_what_was_not_offered_or_is_unfinished_is_text(name: str) -> None:
    unknown = WRITERS[name]([("rm", {"a": "1"})])
    assert parse(SYNTAXES[name], list(unknown)) == (unknown, [])
    text = WRITERS[name]([("add", {"a": 'x}"雨', "b": "[1]"})])
    for end in range(len(text)):
        shown, calls = parse(SYNTAXES[name], cut(text[:end], range(0, 400, 7)))
        assert (shown, len(calls)) in ((text[:end], 0), ("", 1))


@names
def test_the_answer_ends_after_max_calls(name: str) -> None:
    parser = ToolCallParser(SYNTAXES[name], ["add"], max_calls=1)
    text = WRITERS[name]([("add", {"a": "1"}), ("add", {})])
    parsed = parser.push(text)
    assert parser.is_done and [call.name for call in parsed.calls] == ["add"]
