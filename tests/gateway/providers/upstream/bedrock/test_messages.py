"""The messages of a chat as Converse's."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.upstream.bedrock.messages import called_functions, messages_and_system
from gateway.providers.upstream.gemini.contents import SIGNATURE as GEMINI
from gateway.requests.reasoning_details import REDACTED, REDACTED_BEDROCK, details

USER = {"role": "user", "content": "Hi."}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED: dict[str, Any] = {"role": "assistant", "content": "Text.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "2"}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_results_of_parallel_calls_are_one_message() -> None:
    called = {**CALLED, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
    found, _ = messages_and_system([USER, called, RESULT, {**RESULT, "tool_call_id": "c2"}, USER])
    assert [message["role"] for message in found] == ["user", "assistant", "user"]
    results = [block["toolResult"]["toolUseId"] for block in found[2]["content"][:2]]
    assert results == ["c1", "c2"] and found[2]["content"][2] == {"text": "Hi."}
    assert called_functions(found) == ["f"]


def test_system_messages_are_hoisted() -> None:
    system = {"role": "system", "content": "A"}
    assert messages_and_system([system, USER, {"role": "developer", "content": "B"}])[1] == "A\n\nB"


def test_reasoning_goes_back_to_the_models_that_wrote_it() -> None:
    blocks = [("hm", "signed"), ("", REDACTED_BEDROCK + "YWJj"), ("", REDACTED + "x"), ("", GEMINI + "x")]
    ((message,), _) = messages_and_system([{**CALLED, "reasoning_details": details(blocks)}])
    assert [block["reasoningContent"] for block in message["content"][:-2]] == [
        {"reasoningText": {"text": "hm", "signature": "signed"}},
        {"redactedContent": "YWJj"},
    ]


def test_images() -> None:
    parts = [image("data:image/jpeg;base64,AAAA"), image("s3://bucket/x.jpg")]
    ((message,), _) = messages_and_system([{"role": "user", "content": parts}])
    assert [block["image"] for block in message["content"]] == [
        {"format": "jpeg", "source": {"bytes": "AAAA"}},
        {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket/x.jpg"}}},
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": [image("https://x/y.png")]}, "messages[0].content[0].image_url.url"),
        (
            {"role": "user", "content": [image("data:image/tiff;base64,AAAA")]},
            "messages[0].content[0].image_url.url",
        ),
    ],
)
def test_errors_name_the_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_and_system([message])
    assert caught.value.param == param
