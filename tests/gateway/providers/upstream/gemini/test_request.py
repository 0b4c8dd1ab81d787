"""What a chat asks for, in Gemini's terms."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.upstream.gemini.request import FIELDS, generate_body
from gateway.requests.field_support import CHAT
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest


def body(model: str = "gemini-3-x", **fields: object) -> tuple[dict[str, Any], list[str]]:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], **fields}
    return generate_body(typed(chat, ChatRequest), chat, model)


def config(model: str = "gemini-3-x", **fields: object) -> dict[str, Any]:
    found: dict[str, Any] = body(model, **fields)[0].get("generationConfig", {})
    return found


def test_every_field_has_a_rule() -> None:
    assert set(FIELDS) == set(CHAT)


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("gemini-3-x", "none", {"thinkingLevel": "MINIMAL"}),
        ("gemini-3-x", "low", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-2.5-x", "none", {"thinkingBudget": 0}),
        ("models/gemini-2.5-x", "medium", {"thinkingBudget": 8192, "includeThoughts": True}),
    ],
)
def test_efforts(model: str, effort: str, expected: dict[str, Any]) -> None:
    assert config(model, reasoning_effort=effort)["thinkingConfig"] == expected


def test_reasoning_is_shown_as_asked() -> None:
    assert config(include_reasoning=True) == {"thinkingConfig": {"includeThoughts": True}}
    hidden = config(reasoning_effort="high", include_reasoning=False)
    assert hidden == {"thinkingConfig": {"thinkingLevel": "HIGH"}}
    assert config() == {}


def test_values_that_switch_a_field_off() -> None:
    assert config(top_k=-1, temperature=0, n=2) == {"temperature": 0, "candidateCount": 2}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seed": 2**31}, "seed"),
        ({"logprobs": True}, "logprobs"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"zz": 1}, "zz"),
    ],
)
def test_what_the_api_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        body(**fields)
    assert caught.value.param == param


def test_what_has_no_effect_is_named() -> None:
    assert body(verbosity="low", parallel_tool_calls=True, user="u")[1] == ["verbosity"]
