"""POST /v1/messages: every field of Anthropic's reference, and its translation to the body of a chat.

A field is honoured, accepted because it asks for nothing that an answer could show, or refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from gateway.anthropic.content import chat_messages, system_message
from gateway.anthropic.tools import chat_tool_choice, chat_tools
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.field_support import PASSED
from gateway.requests.parse import typed, typed_at

VERSIONS = ("2023-06-01", "2026-10-21")
"""Known values of `anthropic-version`. The sampling fields that the later one removed are still honoured."""
MAX_STOPS = 4
"""Stop sequences of a request: the limit of the chat that answers it."""
EFFORTS = ("low", "medium", "high", "xhigh", "max")
ADAPTIVE_EFFORT = "medium"
"""The effort of adaptive thinking without an `output_config.effort`: OpenAI's default."""
LOW_BUDGET_TOKENS = 2048
MEDIUM_BUDGET_TOKENS = 8192
"""`thinking.budget_tokens` up to these bounds are the efforts low and medium; more is high."""
REFUSED = {
    "container": "containers are not run here",
    "diagnostics": "there are no cache diagnostics",
    "inference_geo": "the gateway's operator chooses where models run",
    "mcp_servers": "MCP servers are not called here",
    "user_profile_id": "there are no user profiles",
    "workspace_id": "the workspace follows from the API key",
}
CHAT_NAMES = (
    (r"\bmessages\[-?\d+\](\.\w+|\[\d+\])*", "messages"),  # the chat's differ in number
    (r"'image_url' parts", "'image' blocks"),
    (r"\bresponse_format(\.json_schema)?\b", "output_config.format"),
    (r"\bmax_completion_tokens\b", "max_tokens"),
    (r"(?<=')stop(?=['\[])", "stop_sequences"),
    (r"\b(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema"),
    (r"\b(tools\[\d+\]|tool_choice)\.function\b", r"\1"),
)
"""Fields of the chat, as expressions, and what they are called here: for errors after the translation."""

Limit = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]


class CountRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What /v1/messages and its count_tokens have in common."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Any], Meta(min_length=1, max_length=100_000)]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None  # accepted: the prefix tree finds shared prefixes
    speed: str | None = None
    container: Any = None
    context_management: dict[str, Any] | None = None  # clearing is ignored, as it only saves tokens
    diagnostics: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Limit | None = None  # required, except by count_tokens
    stream: bool | None = None
    stop_sequences: list[Annotated[str, Meta(min_length=1, max_length=1024)]] | None = None
    temperature: Fraction | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


class _ContextManagement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    edits: list[dict[str, Any]] = []


class _Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: str | None = None


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    schema: dict[str, Any]


class _OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str | None = None
    format: dict[str, Any] | None = None


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user_id: Annotated[str, Meta(max_length=512)] | None = None


class ReadMessages(NamedTuple):
    """A checked request."""

    chat: dict[str, Any]  # the body of the chat that answers it
    shows_thinking: bool
    ignored_fields: list[str]


def read_messages_request(body: dict[str, Any], *, drops_hosted: bool = False) -> ReadMessages:
    """`drops_hosted`: leave out the tools that Anthropic defines. Raises InvalidRequest naming the field."""
    request, extensions = _typed(body)
    chat, shows_thinking, ignored = _read_shared(request, drops_hosted=drops_hosted)
    chat |= extensions
    if request.max_tokens is None:
        raise refusals.missing("max_tokens")
    chat["max_completion_tokens"] = request.max_tokens
    if request.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.stop_sequences:
        if len(request.stop_sequences) > MAX_STOPS:
            got = f"expected at most {MAX_STOPS} sequences, got {len(request.stop_sequences)}"
            raise refusals.wrong_value("stop_sequences", got)
        chat["stop"] = request.stop_sequences
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(request, name)
        if value is not None:
            chat[name] = value
    if request.metadata is not None:
        user_id = typed_at(request.metadata, _Metadata, "metadata").user_id
        if user_id is not None:
            chat["user"] = user_id
    if request.service_tier not in (None, "auto", "standard_only"):
        raise refusals.wrong_value("service_tier", "expected 'auto' or 'standard_only'", request.service_tier)
    return ReadMessages(chat, shows_thinking, ignored)


def read_count_request(body: dict[str, Any], *, drops_hosted: bool = False) -> dict[str, Any]:
    """The chat whose prompt is to be counted. Raises InvalidRequest naming the field."""
    request, extensions = _typed(body)
    return _read_shared(request, drops_hosted=drops_hosted)[0] | extensions


def _typed(body: dict[str, Any]) -> tuple[MessagesRequest, dict[str, Any]]:
    """The request, and the extensions that it has as a chat may have them."""
    own = MessagesRequest.__struct_fields__
    extensions = {name: value for name, value in body.items() if name in PASSED and name not in own}
    given = {name: value for name, value in body.items() if name not in extensions}
    return typed(given, MessagesRequest), extensions


def chat_names(body: dict[str, Any], chat: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """CHAT_NAMES, and the field of `body` that the chat's effort is from."""
    is_given = chat.get("reasoning_effort") == (body.get("output_config") or {}).get("effort")
    return *CHAT_NAMES, (r"\breasoning_effort\b", "output_config.effort" if is_given else "thinking")


def _read_shared(request: CountRequest, *, drops_hosted: bool) -> tuple[dict[str, Any], bool, list[str]]:
    _check_refused(request)
    ignored = _check_edits(request.context_management)
    messages = chat_messages(request.messages)
    if request.system:
        messages.insert(0, system_message(request.system))
    chat: dict[str, Any] = {"model": request.model, "messages": messages}
    if messages[-1]["role"] == "assistant":  # to be continued
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    if request.tools:
        tools, unused = chat_tools(request.tools, drops_hosted=drops_hosted)
        ignored += unused
        chat |= {"tools": tools} if tools else {}
    if request.tool_choice is not None:
        choice = chat_tool_choice(request.tool_choice)
        is_left = _is_left(choice["tool_choice"], chat.get("tools", ()), ignored)
        chat |= choice if is_left else {}
        ignored += [] if is_left else ["tool_choice"]
    effort, shows_thinking = _thinking(request.thinking)
    if request.output_config is not None:
        config = typed_at(request.output_config, _OutputConfig, "output_config")
        if config.effort not in (None, *EFFORTS):
            expected = f"expected one of {', '.join(EFFORTS)}"
            raise refusals.wrong_value("output_config.effort", expected, config.effort)
        if effort in (None, ADAPTIVE_EFFORT) and config.effort is not None:
            effort = config.effort
        if config.format is not None:
            chat["response_format"] = _response_format(config.format)
    if effort is not None:
        chat["reasoning_effort"] = effort
    return chat, shows_thinking, ignored


def _is_left(choice: Any, tools: Sequence[dict[str, Any]], ignored: Sequence[str]) -> bool:  # noqa: ANN401
    """Whether a tool that was chosen is still offered, where some were left out."""
    names = [tool["function"]["name"] for tool in tools]
    if not any(name.startswith("tools.") for name in ignored) or (names and isinstance(choice, str)):
        return True
    return isinstance(choice, dict) and choice["function"]["name"] in names


def _check_refused(request: CountRequest) -> None:
    for name, why in REFUSED.items():
        if getattr(request, name) not in (None, [], {}):
            raise refusals.unsupported(name, f"'{name}' is not supported: {why}. Leave it out")
    if request.speed not in (None, "standard"):
        raise refusals.wrong_value("speed", "only 'standard' is supported", request.speed)


def _check_edits(context_management: Any) -> list[str]:  # noqa: ANN401
    """The names of fields to ignore: edits that clear. Raises InvalidRequest for others, as compaction."""
    if not context_management:
        return []
    edits = typed_at(context_management, _ContextManagement, "context_management").edits
    for number, edit in enumerate(edits):
        if not str(edit.get("type")).startswith("clear_"):
            place = f"context_management.edits[{number}].type"
            raise refusals.unsupported(place, f"'{place}' may only clear here: contexts are not compacted")
    return ["context_management"] if edits else []


def _thinking(given: dict[str, Any] | None) -> tuple[str | None, bool]:
    """The effort that `thinking` asks for, and whether thinking is shown."""
    if given is None:
        return None, False
    thinking = typed_at(given, _Thinking, "thinking")
    if thinking.display not in (None, "summarized", "omitted"):
        raise refusals.wrong_value("thinking.display", "expected 'summarized' or 'omitted'", thinking.display)
    is_shown = thinking.display != "omitted"
    if thinking.type == "adaptive":
        return ADAPTIVE_EFFORT, is_shown
    if thinking.type == "disabled":
        return "none", False
    if thinking.type != "enabled":
        raise refusals.wrong_value(
            "thinking.type", "expected 'enabled', 'adaptive' or 'disabled'", thinking.type
        )
    if thinking.budget_tokens is None:
        raise refusals.missing("thinking.budget_tokens")
    if thinking.budget_tokens > MEDIUM_BUDGET_TOKENS:
        return "high", is_shown
    return "medium" if thinking.budget_tokens > LOW_BUDGET_TOKENS else "low", is_shown


def _response_format(given: dict[str, Any]) -> dict[str, Any]:
    found = typed_at(given, _Format, "output_config.format")
    if found.type != "json_schema":
        raise refusals.wrong_value("output_config.format.type", "expected 'json_schema'", found.type)
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": found.schema}}


def check_version(version: str) -> None:
    """Raise InvalidRequest for an `anthropic-version` that is not known here."""
    if version and version not in VERSIONS:
        raise InvalidRequest(
            f"The header 'anthropic-version' must be one of {', '.join(VERSIONS)}.",
            param="anthropic-version",
            code="invalid_value",
        )
