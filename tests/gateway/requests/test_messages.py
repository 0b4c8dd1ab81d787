from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionContentPartRefusalParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)

from gateway.errors import InvalidRequest
from gateway.requests.messages import FIELDS, TEXT_PART_FIELDS, plain_messages, refuse_images, text_size


def test_text_may_be_a_string_or_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    assert plain_messages(messages) == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {"role": "assistant", "content": "no"},
    ]


def test_an_answer_may_be_sent_back_unchanged() -> None:
    answer: dict[str, Any] = {
        "role": "assistant", "content": "yes", "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": None,
    }  # fmt: skip
    assert plain_messages([answer]) == [{"role": "assistant", "content": "yes"}]
    refusal = {"role": "assistant", "content": None, "refusal": "no"}
    assert plain_messages([refusal]) == [{"role": "assistant", "content": "no"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "so"},
        {"reasoning": "so"},
        {"reasoning": "so", "reasoning_content": "so"},
        {"reasoning": "so", "reasoning_content": None},
    ],
)
def test_reasoning_may_be_sent_back_under_either_name(fields: dict[str, Any]) -> None:
    plain = {"role": "assistant", "content": "yes", "reasoning_content": "so"}
    assert plain_messages([{"role": "assistant", "content": "yes", **fields}]) == [plain]
    assert plain_messages([{"role": "assistant", "content": None, **fields}]) == [plain | {"content": ""}]
    assert text_size([plain]) == text_size([{"role": "assistant", "content": "yes"}]) + 2


def test_empty_reasoning_is_none() -> None:
    answer = {"role": "assistant", "content": "yes", "reasoning_content": None, "reasoning": ""}
    assert plain_messages([answer]) == [{"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    ("params", "known"),
    [
        (ChatCompletionSystemMessageParam, FIELDS),
        (ChatCompletionDeveloperMessageParam, FIELDS),
        (ChatCompletionUserMessageParam, FIELDS),
        (ChatCompletionAssistantMessageParam, FIELDS),
        (ChatCompletionToolMessageParam, FIELDS),
        (ChatCompletionContentPartTextParam, TEXT_PART_FIELDS),
        (ChatCompletionContentPartRefusalParam, ("type", "refusal")),
    ],
)
def test_every_documented_field_of_a_message_is_known(params: type, known: tuple[str, ...]) -> None:
    assert set(params.__annotations__) - set(known) == set()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"content": "x"}, "missing_required_parameter"),
        ({"role": "user"}, "missing_required_parameter"),
        ({"role": "user", "content": None}, "invalid_type"),
        ({"role": "usr", "content": "x"}, "invalid_value"),
        ({"role": "tool", "content": "x"}, "missing_required_parameter"),
        ({"role": "function", "content": "x"}, "unsupported_parameter"),
    ],
)
def test_refusals_carry_a_code(message: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plain_messages([message])
    assert refused.value.code == code


def test_images_that_only_the_decoder_lacks() -> None:
    text = {"type": "text", "text": "What is this?"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
    refuse_images([{"role": "user", "content": [text]}, {"role": "user", "content": "x"}, {"role": "user"}])
    with pytest.raises(InvalidRequest, match="image tower is not loaded; send text only") as refused:
        refuse_images([{"role": "user", "content": "x"}, {"role": "user", "content": [text, image]}])
    assert (refused.value.param, refused.value.code) == (
        "messages[1].content[1].type",
        "unsupported_parameter",
    )


def test_an_unknown_role_is_not_quoted() -> None:
    with pytest.raises(InvalidRequest, match="'messages\\[0\\].role': expected one of system, .*") as refused:
        plain_messages([{"role": "usr", "content": "x"}])
    assert "usr" not in refused.value.message
    with pytest.raises(InvalidRequest) as refused:
        plain_messages([{"role": "my secret question is this", "content": "x"}])
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "messages[1].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, "messages[1].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[1].tool_call_id"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[1].tool_calls"),
        ({"role": "function", "content": "x", "name": "f"}, "messages[1].role"),
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "txt", "text": "x"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "file"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}, "messages[1].content[0].y"),
        ({"role": "user", "content": "x", "contnt": 1}, "messages[1].contnt"),
        ({"role": "user", "content": "x", "name": 1}, "messages[1].name"),
        ({"role": "assistant", "content": "x", "audio": {"id": "1"}}, "messages[1].audio"),
        ({"role": "user", "content": "x", "reasoning_content": "y"}, "messages[1].reasoning_content"),
        ({"role": "assistant", "content": "x", "reasoning": {"y": 1}}, "messages[1].reasoning"),
        (
            {"role": "assistant", "content": "x", "reasoning": "y", "reasoning_content": "z"},
            "messages[1].reasoning",
        ),
        ({"role": "assistant", "content": "x", "refusal": "no"}, "messages[1].refusal"),
        ({"role": "assistant", "content": None, "refusal": 5}, "messages[1].refusal"),
        ({"role": "user", "content": None, "refusal": "no"}, "messages[1].refusal"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "messages[1].content[0].type"),
    ],
)
def test_what_templates_cannot_read_is_refused_by_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plain_messages([{"role": "user", "content": "x"}, message])
    assert refused.value.param == param
