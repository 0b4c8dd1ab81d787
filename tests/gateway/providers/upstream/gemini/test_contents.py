"""The messages of a chat as Gemini's contents."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.upstream.gemini.contents import SIGNATURE as GEMINI
from gateway.providers.upstream.gemini.contents import contents_and_system
from gateway.requests.reasoning_details import details

USER = {"role": "user", "content": "Hi."}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED: dict[str, Any] = {"role": "assistant", "content": "Text.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "2"}


def contents(*messages: dict[str, Any], needs_signatures: bool = False) -> list[dict[str, Any]]:
    return contents_and_system(messages, needs_signatures=needs_signatures)[0]


def test_results_of_parallel_calls_are_one_content_and_repeat_the_name() -> None:
    other = {**CALL, "id": "c2", "function": {"name": "g", "arguments": '{"a": 1}'}}
    called = {**CALLED, "tool_calls": [CALL, other]}
    found = contents(USER, called, RESULT, {**RESULT, "tool_call_id": "c2"}, USER)
    assert [content["role"] for content in found] == ["user", "model", "user"]
    assert found[1]["parts"][2] == {"functionCall": {"id": "c2", "name": "g", "args": {"a": 1}}}
    results = [part["functionResponse"] for part in found[2]["parts"][:2]]
    assert [(result["id"], result["name"]) for result in results] == [("c1", "f"), ("c2", "g")]
    assert results[0]["response"] == {"output": "2"} and found[2]["parts"][2] == {"text": "Hi."}


def test_system_messages_are_hoisted() -> None:
    messages = [{"role": "system", "content": "A"}, USER, {"role": "developer", "content": "B"}]
    found, system = contents_and_system(messages, needs_signatures=False)
    assert system == "A\n\nB" and len(found) == 1


def test_a_calls_signature_goes_back_on_the_first_call() -> None:
    called = {**CALLED, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
    signed = {**called, "reasoning_details": details([("hm", "anthropics"), ("", GEMINI + "x")])}

    def signatures(message: dict[str, Any], *, needs_signatures: bool) -> list[object]:
        (found,) = contents(message, needs_signatures=needs_signatures)
        return [part.get("thoughtSignature") for part in found["parts"]]

    assert signatures(signed, needs_signatures=True) == [None, "x", None]
    assert signatures(signed, needs_signatures=False) == [None, "x", None]
    assert signatures(called, needs_signatures=True) == [None, "skip_thought_signature_validator", None]
    assert signatures(called, needs_signatures=False) == [None, None, None]


def test_images_in_messages_and_results() -> None:
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "See:"}
    url = {"type": "image_url", "image_url": {"url": "https://x/y.jpg?z=1"}}
    file = {"type": "image_url", "image_url": {"url": "gs://bucket/y"}}
    inline = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    (found,) = contents({"role": "user", "content": [data, text, url, file]})
    assert found["parts"] == [
        inline,
        {"text": "See:"},
        {"fileData": {"fileUri": "https://x/y.jpg?z=1", "mimeType": "image/jpeg"}},
        {"fileData": {"fileUri": "gs://bucket/y"}},
    ]
    response = contents(CALLED, {**RESULT, "content": [text, data]})[1]["parts"][0]["functionResponse"]
    assert response["response"] == {"output": "See:"} and response["parts"] == [inline]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": "zz"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
    ],
)
def test_errors_name_the_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        contents(message)
    assert caught.value.param == param
