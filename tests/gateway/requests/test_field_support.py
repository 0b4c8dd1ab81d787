"""The tables against OpenAI's published request types: complete, and each row as it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as chat_create_params

from gateway.errors import InvalidRequest
from gateway.requests.field_support import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    INERT,
    PASSED,
    Rule,
    check_supported,
    listed_names,
)
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest, StreamOptions

TABLES = {
    "chat": (
        CHAT,
        ChatRequest,
        {
            *chat_create_params.CompletionCreateParamsBase.__annotations__,
            *chat_create_params.CompletionCreateParamsStreaming.__annotations__,
        },
    ),
    "completions": (
        COMPLETIONS,
        CompletionRequest,
        {
            *completion_create_params.CompletionCreateParamsBase.__annotations__,
            *completion_create_params.CompletionCreateParamsStreaming.__annotations__,
        },
    ),
    "embeddings": (
        EMBEDDINGS,
        EmbeddingRequest,
        {*embedding_create_params.EmbeddingCreateParams.__annotations__},
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_hold_every_documented_field_and_our_extensions(name: str) -> None:
    table, kind, documented = TABLES[name]
    assert documented - set(table) == set()
    extensions = {field for field, rule in table.items() if rule.note.startswith("extension")}
    assert set(table) - documented == extensions
    assert set(table) == set(kind.__struct_fields__)


def test_every_documented_stream_option_is_known() -> None:
    documented = set(ChatCompletionStreamOptionsParam.__annotations__)
    assert documented == set(StreamOptions.__struct_fields__)


REFUSED = [
    (name, field, rule)
    for name, (table, _, _) in TABLES.items()
    for field, rule in table.items()
    if rule.verdict == "refused"
]


@pytest.mark.parametrize(("name", "field", "rule"), REFUSED)
def test_refused_fields_are_refused_by_name(name: str, field: str, rule: Rule) -> None:
    table: Mapping[str, Rule] = TABLES[name][0]
    for harmless in (None, *rule.harmless):
        check_supported({"model": "m", field: harmless}, table, "m")
    for value in (True, "x", 7, ["x"], {"x": 1}):
        with pytest.raises(InvalidRequest, match=f"'{field}' is not supported") as refused:
            check_supported({"model": "m", field: value}, table, "m")
        assert (refused.value.param, refused.value.code) == (field, "unsupported_parameter")


def test_unknown_fields_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidRequest, match="Did you mean 'temperature'") as refused:
        check_supported({"temprature": 1}, CHAT, "m")
    assert (refused.value.param, refused.value.code) == ("temprature", "unknown_parameter")


def test_long_names_are_neither_compared_nor_quoted() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_supported({"x" * 1_000_000: 1}, CHAT, "m")
    assert len(refused.value.message) + len(refused.value.param or "") < 300


def test_long_values_are_not_quoted() -> None:
    body: dict[str, Any] = {"suffix": "secret " * 20}
    with pytest.raises(InvalidRequest) as refused:
        check_supported(body, COMPLETIONS, "m")
    assert "secret" not in refused.value.message


def test_values_of_enumerations_are_quoted_and_text_is_not() -> None:
    for field, value in {"service_tier": "fast", "verbosity": "talkative"}.items():
        with pytest.raises(InvalidRequest, match=rf"\(got '{value}'\)"):
            check_supported({field: value}, CHAT, "m")
        with pytest.raises(InvalidRequest) as refused:
            check_supported({field: "my question is"}, CHAT, "m")
        assert "question" not in refused.value.message
    with pytest.raises(InvalidRequest, match="'suffix' is not supported with the model 'm': insertion"):
        check_supported({"suffix": "word"}, COMPLETIONS, "m")


DIALS: dict[str, Any] = {"verbosity": "low", "prompt_cache_options": {"mode": "explicit"}}


def test_controls_that_a_model_lacks_are_ignored_unless_the_policy_refuses_them() -> None:
    body = {"model": "m", **DIALS}
    assert check_supported(body, CHAT, "m") == check_supported(body, CHAT, "m", "ignore") == list(DIALS)
    for field, value in DIALS.items():
        with pytest.raises(InvalidRequest, match=f"'{field}' is not supported"):
            check_supported({field: value}, CHAT, "m", "refuse")
    harmless = {"verbosity": "medium", "prompt_cache_options": {"mode": "implicit"}}
    assert check_supported(harmless, CHAT, "m", "refuse") == []


def test_an_ignored_field_still_needs_one_of_its_values() -> None:
    with pytest.raises(InvalidRequest, match="expected one of low, medium, high"):
        check_supported({"verbosity": "talkative"}, CHAT, "m")


def test_the_policy_may_ignore_unknown_fields_but_not_what_would_change_the_answer() -> None:
    assert check_supported({"length_penalty": 2, "x": None}, CHAT, "m", "ignore") == ["length_penalty", "x"]
    with pytest.raises(InvalidRequest, match="'audio' is not supported"):
        check_supported({"audio": {}, "x": 1}, CHAT, "m", "ignore")


def test_listed_names_are_sorted_safe_and_few() -> None:
    assert listed_names(["b", "a"]) == "a, b"
    assert listed_names(["x\r\nset-cookie: y", "a,b"]) == "a?b, x??set-cookie??y"
    long = listed_names([f"{number:03}{'x' * 10_000}é" for number in range(100)])
    assert long.endswith(", ... (84 more)") and len(long) < 1100


@pytest.mark.parametrize("table", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", INERT)
def test_names_of_other_servers_pass_where_they_ask_for_nothing(name: str, table: Mapping[str, Rule]) -> None:
    for value in (None, *INERT[name].harmless):
        assert check_supported({name: value}, table, "m") == []
    with pytest.raises(InvalidRequest, match=f"'{name}' is not supported"):
        check_supported({name: "x y"}, table, "m")


def test_tiers_pass_and_are_named() -> None:
    for tier in ("flex", "priority"):
        assert check_supported({"service_tier": tier}, CHAT, "m") == ["service_tier"]
    assert {"top_k", "min_p", "seed", "use_beam_search"} <= PASSED and not {"n", "messages"} & PASSED
