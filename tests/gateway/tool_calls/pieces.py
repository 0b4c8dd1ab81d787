"""Runs a parser over a whole answer; strategies for what models write."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.tool_calls.parser import Parsed, Syntax, ToolCallParser

NAMES = ("add", "look_up", "get-weather")
Calls = list[tuple[str, str]]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(["}", '"}]', "\\", '\\"', "{", "</tool_call>", "[TOOL_CALLS]", "<", "雨🎉", "a\nb",
    ";", "\u2028"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
arguments = st.dictionaries(
    st.text("ab}\"'\\é雨 ", max_size=6).filter(lambda key: key not in ("name",)), json_values, max_size=3
)
calls = st.tuples(st.sampled_from(NAMES), arguments)
json_styles = st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 2}, {"separators": (",", ":")}])
cuts = st.lists(st.integers(0, 400), max_size=20)


def cut(text: str, at: Sequence[int]) -> list[str]:
    """The text in pieces."""
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def parse(syntax: Syntax, pieces: Sequence[str], **options: Any) -> tuple[str, Calls]:  # noqa: ANN401
    """Text and calls of an answer in these pieces; checks the invariants of every answer."""
    parser = ToolCallParser(syntax, NAMES, **options)
    parts = [parser.push(piece) for piece in pieces]
    parts.append(parser.flush())
    found = collect(parts)
    assert parser.num_calls == len(found[1])
    assert parser.num_settled_chars == sum(map(len, pieces))
    return found


def collect(parts: Sequence[Parsed]) -> tuple[str, Calls]:
    """All parts joined, as a client does it."""
    names: list[str] = []
    ids: list[str] = []
    texts: list[str] = []
    for delta in (delta for part in parts for delta in part.calls):
        if delta.index == len(names):
            names.append(delta.name)
            ids.append(delta.call_id)
            texts.append("")
        else:
            assert delta.index == len(names) - 1 and delta.arguments
            assert (delta.name, delta.call_id) == ("", "")
        texts[-1] += delta.arguments
    assert len(set(ids)) == len(ids) and all(each.startswith("call_") for each in ids)
    return "".join(part.text for part in parts), list(zip(names, texts, strict=True))


def decoded(found: Calls) -> list[tuple[str, object]]:
    """Calls with their arguments as values."""
    return [(name, json.loads(text)) for name, text in found]
