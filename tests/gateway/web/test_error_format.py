"""Errors after a translation have the names of the API that was called."""

from __future__ import annotations

import json

import pytest

from gateway.anthropic.request import CHAT_NAMES as MESSAGES
from gateway.errors import ApiError, InvalidRequest, RateLimited
from gateway.openai.responses.request import CHAT_NAMES as RESPONSES
from gateway.web.error_format import OPENAI_ERRORS, RenamedErrors


@pytest.mark.parametrize(
    ("param", "in_responses", "in_messages"),
    [
        ("messages", "input", "messages"),
        ("messages[3].tool_calls[0].id", "input", "messages"),
        ("max_tokens", "max_output_tokens", "max_tokens"),
        ("max_completion_tokens", "max_output_tokens", "max_tokens"),
        ("response_format", "text.format", "output_config.format"),
        ("response_format.json_schema.schema", "text.format.schema", "output_config.format.schema"),
        ("stop[1]", "stop[1]", "stop_sequences[1]"),
        ("tools[12].function.parameters", "tools[12].parameters", "tools[12].input_schema"),
        ("tools[0].function.name", "tools[0].name", "tools[0].name"),
        ("tool_choice.function.name", "tool_choice.name", "tool_choice.name"),
        ("top_p", "top_p", "top_p"),
    ],
)
def test_fields_have_the_callers_names(param: str, in_responses: str, in_messages: str) -> None:
    error = InvalidRequest(f"Stop: '{param}' is wrong. See {param}.", param=param, code="invalid_value")
    for names, expected in ((RESPONSES, in_responses), (MESSAGES, in_messages)):
        found = json.loads(RenamedErrors(OPENAI_ERRORS, names).body(error, ""))["error"]
        assert (found["param"], found["code"], found["type"]) == (expected, error.code, error.type)
        assert found["message"].startswith(f"Stop: '{expected}' is wrong.")


@pytest.mark.parametrize(
    "error", [RateLimited("No messages now."), ApiError("No.", param="model", status=409)]
)
def test_the_rest_stays(error: ApiError) -> None:
    renamed = RenamedErrors(OPENAI_ERRORS, RESPONSES)
    assert renamed.body(error, "") == OPENAI_ERRORS.body(error, "")
    assert renamed.event(error, "") == OPENAI_ERRORS.event(error, "")
