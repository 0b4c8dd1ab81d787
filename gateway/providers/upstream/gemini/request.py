"""The body of a chat → that of Gemini's generateContent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.providers.upstream.fields import field_rules
from gateway.providers.upstream.gemini.contents import contents_and_system
from gateway.requests import refusals
from gateway.requests.field_support import check_supported
from gateway.requests.reasoning import shows_reasoning
from gateway.requests.structured_output import read_format
from gateway.requests.tools import read_tools
from gateway.requests.types import ChatRequest

LEVELS = {
    "none": "MINIMAL",  # since Gemini 3 thinking cannot be switched off
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "XHIGH",
    "max": "XHIGH",
}
"""`reasoning_effort` → thinkingLevel, since Gemini 3."""
BUDGETS = {
    "none": 0,
    "minimal": 1024,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
"""`reasoning_effort` → thinkingBudget in tokens, up to Gemini 2.5, as in Google's OpenAI-compatible API."""
CONFIG_FIELDS = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "n": "candidateCount",
    "token_limit": "maxOutputTokens",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "seed": "seed",
}
FIELDS = field_rules("Gemini's API", ("top_k", "n", "presence_penalty", "frequency_penalty", "seed"))
"""What Gemini's API does with each field of a chat."""


def generate_body(
    request: ChatRequest, body: Mapping[str, Any], model: str
) -> tuple[dict[str, Any], list[str]]:
    """The body for Gemini's API, and the names of ignored fields. `model` is the name there.

    Raises InvalidRequest for what the API cannot do, naming the field.
    """
    ignored = check_supported(body, FIELDS, request.model)
    name = model.removeprefix("models/")
    is_older = name.startswith(("gemini-1", "gemini-2"))
    needs_signatures = name.startswith("gemini-") and not is_older
    contents, system = contents_and_system(request.messages, needs_signatures=needs_signatures)
    found: dict[str, Any] = {"contents": contents}
    if system:
        found["systemInstruction"] = {"parts": [{"text": system}]}
    given = {name: getattr(request, field) for field, name in CONFIG_FIELDS.items()}
    config = {name: value for name, value in given.items() if value is not None}
    if (request.top_k or 0) <= 0:  # off
        config.pop("topK", None)
    if not -(2**31) <= (request.seed or 0) < 2**31:
        raise refusals.wrong_value("seed", "Gemini's API takes 32 bits", request.seed)
    if request.stops:
        config["stopSequences"] = request.stops
    config |= _format(request)
    config |= _thinking(request, is_older=is_older)
    if config:
        found["generationConfig"] = config
    return found | _tools(request), ignored


def _format(request: ChatRequest) -> dict[str, Any]:
    schema = read_format(request)
    if schema is None:
        return {}
    config: dict[str, Any] = {"responseMimeType": "application/json"}
    return config | ({"responseJsonSchema": schema} if schema else {})


def _thinking(request: ChatRequest, *, is_older: bool) -> dict[str, Any]:
    effort = request.reasoning_effort
    thinking: dict[str, Any] = {}
    if effort is not None:
        if effort not in LEVELS:
            expected = f"expected one of {', '.join(LEVELS)}"
            raise refusals.wrong_value("reasoning_effort", expected, effort)
        if is_older:
            thinking["thinkingBudget"] = BUDGETS[effort]
        else:
            thinking["thinkingLevel"] = LEVELS[effort]
    if shows_reasoning(request):
        thinking["includeThoughts"] = True
    return {"thinkingConfig": thinking} if thinking else {}


def _tools(request: ChatRequest) -> dict[str, Any]:
    """`tools` and `toolConfig`. Raises InvalidRequest."""
    choice = read_tools(request)
    if choice is None:
        return {}
    functions = []
    for definition in choice.definitions:
        function = definition["function"]
        declaration = {"name": function["name"], "parametersJsonSchema": function["parameters"]}
        if "description" in function:
            declaration["description"] = function["description"]
        functions.append(declaration)
    found: dict[str, Any] = {"tools": [{"functionDeclarations": functions}]}
    mode = "ANY" if choice.is_required else "VALIDATED" if choice.strict else ""
    if mode:  # both bind the arguments to the schemas; only offered functions are declared
        found["toolConfig"] = {"functionCallingConfig": {"mode": mode}}
    return found
