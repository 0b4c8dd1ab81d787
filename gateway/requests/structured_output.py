"""Structured output: `response_format` and vLLM's extensions → one grammar for the engine."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backend.tokenizer.thinking import THINK, Tags
from backend.types import GrammarSpec
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.parse import json_fault, json_text, typed
from gateway.requests.strict_schema import strict_fault
from gateway.requests.types import ChatRequest, CompletionRequest

MAX_CHOICES = 4096
MAX_CHARS = 256 * 1024

_TYPES = ("text", "json_object", "json_schema")
_EXTENSIONS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
FREE_TEXT = GrammarSpec(kind="lark", text="start: /(?s:.*)/", param="thinking_token_budget")
_ANY_OBJECT = '{"type":"object"}'

Text = Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)]
Choices = Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICES)]


class _JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class _ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    json_schema: _JsonSchema | None = None


class _StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's object; exactly one member is set."""

    json: dict[str, Any] | Text | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None


class _Fields(msgspec.Struct, frozen=True):
    """The request's fields with their full types; the request itself has them as dicts."""

    response_format: _ResponseFormat | None = None
    guided_json: dict[str, Any] | Text | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    structured_outputs: _StructuredOutputs | None = None


def grammar_for(request: ChatRequest | CompletionRequest) -> GrammarSpec | None:
    """The grammar that a request asks for. Raises InvalidRequest for invalid or conflicting fields."""
    names = ("response_format", *_EXTENSIONS)
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    if not given:
        return None
    fields = typed(given, _Fields)
    asking = [name for name in given if name != "response_format" or given[name].get("type") != "text"]
    if len(asking) > 1:
        raise InvalidRequest(
            f"'{asking[0]}' and '{asking[1]}' exclude each other: both say what the answer must look like. "
            "Send one of them.",
            param=asking[1],
            code="invalid_value",
        )
    if fields.response_format is not None:
        _check_format(fields.response_format)
        if asking == ["response_format"]:
            return _from_format(fields.response_format)
    if fields.structured_outputs is not None:
        return _from_outputs(fields.structured_outputs)
    if not asking:
        return None
    guided = _StructuredOutputs(
        fields.guided_json, fields.guided_regex, fields.guided_choice, fields.guided_grammar
    )
    return _spec(guided, asking[0])


def read_format(request: ChatRequest) -> dict[str, Any] | None:
    """The JSON schema of `response_format`: None where the answer is text, {} for any JSON object.

    For providers that enforce it themselves. Raises InvalidRequest naming the field.
    """
    found = typed({"response_format": request.response_format}, _Fields).response_format
    if found is None:
        return None
    _check_format(found)
    if found.type == "json_schema" and found.json_schema is None:
        raise refusals.missing("response_format.json_schema")
    if found.json_schema is not None:
        return found.json_schema.schema
    return {} if found.type == "json_object" else None


def with_reasoning(
    spec: GrammarSpec | None, begins_inside: bool | None, max_tokens: int = 0, tags: Tags = THINK
) -> GrammarSpec | None:
    """The grammar of an answer that follows reasoning, which ends after `max_tokens`; 0: when it likes.

    `begins_inside`: the prompt has opened the reasoning already. None: there is no reasoning.
    """
    if begins_inside is None or (spec is None and not max_tokens):
        return spec
    thought = "inside" if begins_inside else "whole"
    return msgspec.structs.replace(
        spec or FREE_TEXT,
        thought=thought,
        max_thought_tokens=max_tokens,
        thought_tags=(tags.opening, tags.closing + tags.answer),
    )


def _check_format(given: _ResponseFormat) -> None:
    if given.type not in _TYPES:
        expected = f"expected one of {', '.join(_TYPES)}"
        raise refusals.wrong_value("response_format.type", expected, given.type)
    if given.json_schema is not None and given.type != "json_schema":
        raise InvalidRequest(
            f"'response_format.json_schema' belongs to the type 'json_schema', not to {given.type!r}. "
            "Change the type, or leave the schema out.",
            param="response_format.json_schema",
            code="invalid_value",
        )


def _from_format(given: _ResponseFormat) -> GrammarSpec:
    if given.type == "json_object":
        return GrammarSpec(kind="json_schema", text=_ANY_OBJECT)
    if given.json_schema is None:
        raise refusals.missing("response_format.json_schema")
    schema = given.json_schema.schema
    text = json_text(schema, "response_format", MAX_CHARS)  # first: it bounds the size for the check below
    is_strict = bool(given.json_schema.strict)
    if is_strict and (fault := strict_fault(schema)) is not None:
        raise InvalidRequest(
            f"Invalid schema for response_format '{given.json_schema.name}': {fault}",
            param="response_format",
            code="invalid_json_schema",
        )
    return GrammarSpec(kind="json_schema", text=text, is_exact=is_strict)


def _from_outputs(given: _StructuredOutputs) -> GrammarSpec:
    asked = [
        name for name in _StructuredOutputs.__struct_fields__ if getattr(given, name) not in (None, False)
    ]
    if len(asked) != 1:
        found = " and ".join(map(repr, asked)) or "nothing"
        raise InvalidRequest(
            f"'structured_outputs' asks for {found}: it must hold exactly one of "
            f"{', '.join(_StructuredOutputs.__struct_fields__)}.",
            param="structured_outputs",
            code="invalid_value",
        )
    return _spec(given, "structured_outputs")


def _spec(given: _StructuredOutputs, param: str) -> GrammarSpec:
    if given.regex is not None:
        return GrammarSpec(kind="regex", text=given.regex, param=param)
    if given.grammar is not None:
        return GrammarSpec(kind="lark", text=given.grammar, param=param)
    if given.choice is not None:
        return GrammarSpec(kind="choice", text=json_text(given.choice, param, MAX_CHARS), param=param)
    if isinstance(given.json, str):
        _check_schema_text(given.json, param)
        return GrammarSpec(kind="json_schema", text=given.json, param=param)
    text = _ANY_OBJECT if given.json is None else json_text(given.json, param, MAX_CHARS)
    return GrammarSpec(kind="json_schema", text=text, param=param)


def _check_schema_text(text: str, param: str) -> None:
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        fault = json_fault(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise InvalidRequest(
            f"'{param}' is not a JSON schema: {fault}. Send a JSON object.",
            param=param,
            code="invalid_value",
        ) from None
