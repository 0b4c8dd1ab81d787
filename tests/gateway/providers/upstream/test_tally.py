"""Usage that an upstream does not tell, or not to the end, is estimated and marked; never zero."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.answer import Delta, ToolCallDelta, Usage
from gateway.errors import ApiError, TimedOut
from gateway.providers.upstream.tally import Tally, length_in, length_of
from gateway.providers.upstream.transport import ConnectFailed, ConnectionBroken, ReplyTimedOut
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest

BODY = {"model": "m", "messages": [{"role": "user", "content": "12345678"}]}
PROMPT_TOKENS = 2


def tally(**known: int) -> Tally:
    return Tally(Usage(**known), typed(BODY, ChatRequest))


def test_without_a_report_all_is_estimated() -> None:
    found = tally()
    found.num_characters += 9
    found.settle(is_complete=True)
    assert found.usage == Usage(PROMPT_TOKENS, 3, is_estimated=True)
    found.settle()
    found.settle(is_complete=True)
    assert found.usage == Usage(PROMPT_TOKENS, 3, is_estimated=True)


def test_a_report_of_the_whole_stands() -> None:
    found = tally(prompt_tokens=70)
    found.num_characters += 9
    found.usage.completion_tokens = 30
    found.report()
    found.settle(is_complete=True)
    found.settle()
    assert found.usage == Usage(70, 30)


@pytest.mark.parametrize("is_complete", [True, False])
def test_what_comes_after_a_report_is_added(*, is_complete: bool) -> None:
    found = tally(prompt_tokens=70, completion_tokens=30)
    found.num_characters += 8
    found.settle(is_complete=is_complete)
    assert found.usage == Usage(70, 32, is_estimated=True)


def failed(cause: Exception) -> ApiError:
    error = TimedOut("late")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "has_begun", "is_charged"),
    [
        (asyncio.CancelledError(), False, True),
        (asyncio.CancelledError(), True, True),
        (failed(ReplyTimedOut()), False, True),
        (failed(ConnectionBroken()), True, True),
        (failed(ConnectionBroken()), False, False),
        (failed(ConnectFailed()), False, False),
        (ApiError("refused", status=400), False, False),
        (ApiError("overloaded", status=503), True, False),
    ],
)
def test_a_call_without_an_answer(error: BaseException, has_begun: bool, is_charged: bool) -> None:
    usages = tally().lost(error, has_begun=has_begun)
    assert usages == ([Usage(PROMPT_TOKENS, 0, is_estimated=True)] if is_charged else [])


def test_an_error_after_content_is_charged() -> None:
    found = tally()
    found.num_characters += 4
    assert found.lost(ApiError("x"), has_begun=True) == [Usage(PROMPT_TOKENS, 1, is_estimated=True)]


@pytest.mark.parametrize(
    ("value", "length"),
    [
        ("", 0),
        ("abc", 3),
        ('say "hi"\n\\', 10),
        ("Grüße", 5),
        ("日本語", 3),
        ("👩‍👩‍👧", 5),
        ("नमस्ते", 6),
        ("\x00\x1f", 2),
        (None, 0),
        (7, 0),
        (True, 0),
        ([{"type": "text", "text": "abc"}, {"type": "image", "url": "abcdef"}], 3),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "abcd"}]}], 4),
        ({"name": "clock", "arguments": '{"at":1}'}, 8),
        ({"name": "clock", "arguments": {"at": 1}}, 9),
        ({"name": "clock", "input": "abc"}, 3),
        ({"name": "clock"}, 0),
        ({}, 0),
    ],
)
def test_the_length_of_a_value(value: Any, length: int) -> None:  # noqa: ANN401 - any JSON
    assert length_in(value) == length


def test_a_deep_value_does_not_end_the_stream() -> None:
    deep: Any = "abc"
    for _ in range(10_000):
        deep = [deep]
    assert length_in(deep) == 0
    assert length_in([[[["abc"]]]]) == 3


def test_a_delta_is_its_text_reasoning_and_arguments() -> None:
    calls = [ToolCallDelta(0, "12", "id", "name"), ToolCallDelta(1, "345")]
    assert length_of(Delta(0, "a", reasoning="bcd", tool_calls=calls)) == 9
