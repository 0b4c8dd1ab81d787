from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.requests.parse import decode_body, typed
from gateway.requests.prompts import parse_prompts
from gateway.requests.types import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b'"x"', b"1", b"tru", b"{", b'{"a":1}x', b'{"a":NaN}', b'{"a":Infinity}',
        b'{"a":1e999}', b'{"a":"\\ud800"}', b'{"a":"\xed\xa0\x80"}', b"\xff\xfe", b"\xef\xbb\xbf{}",
        b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"1" * 5000 + b"}",
    ],
)  # fmt: skip
def test_anything_but_one_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_body(raw)
    assert refused.value.code == "invalid_json"


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_bytes_either_decode_or_are_refused(raw: bytes) -> None:
    try:
        assert isinstance(decode_body(raw), dict)
    except InvalidRequest as refused:
        assert refused.status == 400


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"repetition_penalty": 1e-30}, "repetition_penalty", "invalid_value"),
        ({"repetition_penalty": 1001}, "repetition_penalty", "invalid_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"n": 129}, "n", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ({"stop": list("abcde")}, "stop", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [1]}, "messages[0]", "invalid_type"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
        ({"metadata": {"k" * 65: "v"}}, "metadata", "invalid_value"),
        ({"metadata": {"k": 1}}, "metadata", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"stream_options": {"include_usag": True}}, "stream_options.include_usag", "unknown_parameter"),
        ({"model": ""}, "model", "invalid_value"),
    ],
)
def test_the_invalid_field_is_named(change: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        typed(GOOD | change, ChatRequest)
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize("value", [0.001, 1000])
def test_a_repetition_penalty_may_be_what_the_engine_takes(value: float) -> None:
    assert typed(GOOD | {"repetition_penalty": value}, ChatRequest).repetition_penalty == value


def test_integral_floats_are_integers() -> None:
    floats = {"max_tokens": 1.0, "n": 2.0, "top_logprobs": 5.0, "seed": -3.0, "stop_token_ids": [7.0, 8]}
    request = typed(GOOD | floats, ChatRequest)
    assert (request.max_tokens, request.n, request.top_logprobs, request.seed) == (1, 2, 5, -3)
    assert request.stop_token_ids == [7, 8]
    numbers = [request.max_tokens, request.n, request.top_logprobs, request.seed, *request.stop_token_ids]
    assert {type(number) for number in numbers} == {int}
    assert typed({"model": "m", "prompt": [[1.0], [2.0]]}, CompletionRequest).prompt == [[1], [2]]
    assert typed({"tokens": [1.0]}, DetokenizeRequest).tokens == [1]


@pytest.mark.parametrize("value", [1.5, True, "1", 2.0**53, 1e300, float("inf")])
def test_other_numbers_are_no_integers(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        typed(GOOD | {"seed": value}, ChatRequest)
    assert (refused.value.param, refused.value.code) == ("seed", "invalid_type")


def test_integral_floats_are_checked_against_the_range() -> None:
    with pytest.raises(InvalidRequest, match="'n'") as refused:
        typed(GOOD | {"n": 129.0}, ChatRequest)
    assert refused.value.code == "invalid_value"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 3}, "expected a number <= 2.0 (got 3)."),
        ({"n": 1.5}, "expected an integer or null (got 1.5)."),
        ({"n": True}, "expected an integer or null, got a boolean."),
        ({"stop": {}}, "expected a string or an array or null, got an object."),
        ({"messages": []}, "expected an array of length >= 1."),
    ],
)
def test_types_have_the_names_of_json(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        typed(GOOD | change, ChatRequest)
    assert refused.value.message.endswith(words) and "`" not in refused.value.message


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "it ends too early"),
        (b'{"a":1}x', "trailing characters (byte 8)"),
        (b'{"a":1e999}', "number out of range"),
        (b'{"a":"\xed\xa0\x80"}', "it is not UTF-8"),
    ],
)
def test_what_is_no_json_is_said_in_plain_words(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_body(raw)
    assert refused.value.message == f"The body is not valid JSON: {words}."


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequest, match="messages") as refused:
        typed({"model": "m"}, ChatRequest)
    assert (refused.value.param, refused.value.code) == ("messages", "missing_required_parameter")


def test_the_nearest_field_is_offered() -> None:
    with pytest.raises(InvalidRequest, match="Did you mean 'tokens'") as refused:
        typed({"tokens": [1], "token": [1]}, DetokenizeRequest)
    assert refused.value.param == "token"


def test_strings_are_never_quoted() -> None:
    with pytest.raises(InvalidRequest) as refused:
        typed({"model": "m", "messages": "my secret"}, ChatRequest)
    assert "secret" not in refused.value.message
    with pytest.raises(InvalidRequest) as refused:
        typed({"prompt": ["my secret"]}, TokenizeRequest)
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_prompts_have_four_forms(prompt: Any, prompts: list[Any]) -> None:  # noqa: ANN401
    request = typed({"model": "m", "prompt": prompt}, CompletionRequest)
    assert parse_prompts(request.prompt, "prompt") == prompts


@pytest.mark.parametrize("prompt", [None, 1, {}, [], [1.5], [None], [-1], [[]], ["a", [None]]])
def test_other_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        typed({"model": "m", "prompt": prompt}, CompletionRequest)
    assert (refused.value.param or "").startswith("prompt")


@pytest.mark.parametrize("prompt", [["a", 1], [1, [1]], ["a", [1]]])
def test_mixed_prompts_are_refused(prompt: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidRequest, match="either"):
        parse_prompts(prompt, "prompt")


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        ({"1": 2, "50": 200}, "'logit_bias.50': expected a number <= 100.0 (got 200)"),
        ({"1": 2, "50": "x"}, "'logit_bias.50': expected a number, got a string"),
        ({"a prompt, not a key": None}, "'logit_bias': expected a number, got null"),
    ],
)
def test_an_entry_at_fault_is_named(bias: dict[str, object], words: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "logit_bias": bias}
    with pytest.raises(InvalidRequest) as refused:
        typed(body, ChatRequest)
    assert words in refused.value.message and refused.value.param == "logit_bias"
