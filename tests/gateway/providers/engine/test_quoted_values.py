"""Grammars of Gemma's notation: values fit their schemas, however deep, and strict limits are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from backend.structured.compiled_grammar import parsed
from backend.structured.llguidance_source import llguidance_source
from backend.structured.vocabulary import Vocabulary
from backend.tokenizer import Tokenizer
from backend.types import GrammarSpec
from gateway.errors import InvalidRequest
from gateway.providers.engine.tool_grammar import call_grammar
from gateway.requests.tools import ToolChoice
from gateway.tool_calls.gemma import GEMMA4
from tests.gateway.tool_calls.writers import WRITERS

PICO = Path(__file__).parents[4] / "backend" / "pico" / "weights" / "pico-small"
SCHEMA = {
    "type": "object",
    "properties": {
        "size": {"enum": ["s", "m, or }", 3, None, ["x", {"k": False}]]},
        "tree": {"$ref": "#/$defs/tree"},
        "either": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "boolean"}]},
        "few": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "any": {},
        "table": {"type": "object", "additionalProperties": {"type": "integer"}},
        "one": {"allOf": [{"type": ["null", "string"]}]},
    },
    "required": ["size"],
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "n": {"type": "number"},
                "of": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
            "required": ["n"],
        }
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_checkpoint(PICO)


def choice(schema: dict[str, Any], **fields: Any) -> ToolChoice:  # noqa: ANN401
    definition = {"type": "function", "function": {"name": "add", "parameters": schema}}
    places = {"add": "tools[0].function.parameters"}
    return ToolChoice([definition], is_required=True, places=places, **fields)


@pytest.fixture(scope="module")
def matcher(tokenizer: Tokenizer) -> LLMatcher:
    vocabulary = Vocabulary.from_tokenizer(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    grammar = call_grammar(GEMMA4, choice(SCHEMA), tokenizer.special_id)
    return LLMatcher(
        vocabulary.ll_tokenizer, parsed(llguidance_source(GrammarSpec(kind="lark", text=grammar), vocabulary))
    )


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ({"size": "s"}, True),
        ({"size": "m, or }"}, True),
        ({"size": 3}, True),
        ({"size": ["x", {"k": False}]}, False),  # keys of a literal are quoted
        ({"size": "l"}, False),
        ({}, False),
        ({"size": "s", "tree": {"n": 1.5, "of": [{"n": 2}, {"n": 3, "of": []}]}}, True),
        ({"size": "s", "tree": {"of": []}}, False),
        ({"size": "s", "tree": {"n": "x"}}, False),
        ({"size": "s", "either": 5}, True),
        ({"size": "s", "either": True}, True),
        ({"size": "s", "either": -5}, False),
        ({"size": "s", "few": ["a", "雨]"]}, True),
        ({"size": "s", "few": []}, False),
        ({"size": "s", "few": ["a", "b", "c"]}, False),
        ({"size": "s", "any": [1, "x", [True], []]}, True),
        ({"size": "s", "any": "x"}, True),
        ({"size": "s", "table": {}}, True),
        ({"size": "s", "table": {"a b": 5, "c-d": 6}}, True),
        ({"size": "s", "table": {"a b": "x"}}, False),
        ({"size": "s", "one": "x"}, True),
        ({"size": "s", "one": 5}, False),
        ({"size": "s", "either": 1, "few": ["a"], "one": "b"}, True),
        ({"size": "s", "z": 1}, False),
    ],
)
def test_values_fit_their_schemas(
    tokenizer: Tokenizer, matcher: LLMatcher, values: dict[str, Any], fits: bool
) -> None:
    ids = tokenizer.encode(WRITERS["gemma4"]([("add", values)]))
    state = matcher.deep_copy()
    assert not state.is_error(), state.get_error()
    assert (state.try_consume_tokens(ids) == len(ids) and state.is_accepting()) == fits


@pytest.mark.parametrize(
    ("schema", "word", "kind"),
    [
        ({"type": "string", "pattern": "a+"}, "pattern", "string"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems", "array"),
        ({"type": "object", "properties": {"x": {"type": "string", "maxLength": 3}}}, "maxLength", "string"),
        ({"type": "object", "patternProperties": {}}, "patternProperties", "object"),
    ],
)
def test_a_strict_limit_that_no_rule_enforces_is_refused_by_name(
    schema: dict[str, Any], word: str, kind: str
) -> None:
    function = {"type": "object", "properties": {"k": schema}}
    with pytest.raises(
        InvalidRequest, match=f"function 'add': '{word}' of a value of type '{kind}'"
    ) as refused:
        call_grammar(GEMMA4, choice(function, strict=frozenset(["add"])), lambda _: None)
    assert refused.value.param == "tools[0].function.parameters"
    assert call_grammar(GEMMA4, choice(function), lambda _: None)
