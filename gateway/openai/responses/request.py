"""POST /v1/responses: every field of OpenAI's reference, and its translation to the body of a chat.

A field is honoured, accepted because it asks for nothing that an answer could show, or refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.errors import InvalidRequest
from gateway.openai.responses.tools import OfferedTools
from gateway.requests import refusals
from gateway.requests.field_support import PASSED
from gateway.requests.parse import typed, typed_at
from gateway.requests.types import MAX_TOP_LOGPROBS, Fraction, Metadata, StreamOptions

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    LOGPROBS,
    "reasoning.encrypted_content",  # accepted: reasoning is not encrypted
    "message.input_image.image_url",
    "computer_call_output.output.image_url",  # accepted, as the next: such tools are refused
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
)
CARRYING_TOOLS = ("additional_tools", "tool_search_output")
"""Items that offer further tools."""
CONTEXTS = ("auto", "current_turn", "all_turns")  # accepted: the model's chat template decides
SUMMARIES = ("auto", "concise", "detailed")
REFUSED = {
    "access_programs": "there are no access programs",
    "context_management": "the context is not compacted here",
    "image": "images are not compressed here",
    "moderation": "answers carry no moderation results",
    "prompt": "prompt templates are not stored here",
}
CHAT_NAMES = (
    # Items and messages differ in number.
    (r"\bmessages\[-?\d+\](\.\w+|\[\d+\])*|(?<=')messages(?=')", "input"),
    (r"'image_url' parts", "'input_image' parts"),
    (r"\bresponse_format(\.json_schema)?\b", "text.format"),
    (r"\bmax(_completion)?_tokens\b", "max_output_tokens"),
    (r"\breasoning_effort\b", "reasoning.effort"),
    (r"(?<=')verbosity(?=')", "text.verbosity"),
    (r"\b(tools\[\d+\])\.custom\.format\.grammar\b", r"\1.format"),
    (r"\b(tools\[\d+\]|tool_choice)\.(function|custom)\b", r"\1"),
)
"""Fields of the chat, as expressions, and what they are called here: for errors after the translation."""

Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class _Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | Annotated[list[Any], Meta(min_length=1)] | None = None  # needed unless there are other texts
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=128)] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Fraction | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Tokens | None = None  # accepted: of hosted tools, which are refused
    include: list[str] | None = None
    metadata: Metadata | None = None
    truncation: str | None = None
    service_tier: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None  # accepted: the prefix tree finds shared prefixes
    prompt_cache_retention: str | None = None  # accepted, likewise
    client_metadata: Any = None  # ignored: what Codex says about itself and its session
    access_programs: Any = None
    background: bool | None = None
    context_management: Any = None
    conversation: str | _Conversation | None = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None


class _Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # the older name of `summary`
    context: str | None = None
    mode: str | None = None


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A checked request."""

    request: ResponsesRequest
    chat: dict[str, Any]  # the body of the chat, without its messages
    tools: OfferedTools
    wants_summary: bool = False  # reasoning is shown as a summary, else as it is
    wants_logprobs: bool = False

    @property
    def ignored_fields(self) -> list[str]:
        """The fields that have no effect."""
        named = [] if self.request.client_metadata is None else ["client_metadata"]
        return [*named, *self.tools.ignored]

    def with_tools_of(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The body of the chat, which offers the tools that items carry, too. Raises InvalidRequest."""
        carrying = [n for n, item in enumerate(items) if item["type"] in CARRYING_TOOLS]
        for number in carrying:
            self.tools.add(items[number]["tools"], f"input[{number}].tools")
        return {**self.chat, **_tools(self.request, self.tools)} if carrying else self.chat

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation that the request belongs to."""
        found = self.request.conversation
        return found.id if isinstance(found, _Conversation) else found

    @property
    def is_stored(self) -> bool:
        """Whether the response can be retrieved and continued; OpenAI's default is true."""
        return self.request.store is not False


def read_request(body: dict[str, Any], *, drops_hosted: bool = False) -> ReadRequest:
    """`drops_hosted`: leave out the tools that OpenAI runs. Raises InvalidRequest naming the field."""
    extensions = {name: value for name, value in body.items() if name in PASSED or name == "stop"}
    given = {name: value for name, value in body.items() if name not in extensions}
    request = typed(given, ResponsesRequest)
    _check(request)
    try:
        msgspec.json.encode(body)  # it is stored, and repeated in the answer
    except UnicodeEncodeError:
        raise InvalidRequest("The body holds a text that is not Unicode: a lone surrogate.") from None
    chat: dict[str, Any] = {**extensions, "model": request.model}
    if request.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.max_output_tokens is not None:
        chat["max_completion_tokens"] = request.max_output_tokens
    same = ("temperature", "top_p", "service_tier", "safety_identifier", "user", "prompt_cache_key")
    for name in (*same, "parallel_tool_calls"):
        value = getattr(request, name)
        if value is not None:
            chat[name] = value
    wants_logprobs = LOGPROBS in (request.include or ()) or bool(request.top_logprobs)
    if wants_logprobs:
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    tools = OfferedTools(drops_hosted=drops_hosted)
    tools.add(request.tools or ())
    chat |= _tools(request, tools)
    chat |= _text(request.text)
    effort, wants_summary = _reasoning(request.reasoning)
    if effort is not None:
        chat["reasoning_effort"] = effort
    return ReadRequest(request, chat, tools, wants_summary, wants_logprobs)


def _tools(request: ResponsesRequest, tools: OfferedTools) -> dict[str, Any]:
    """The chat's `tools` and `tool_choice`. Raises InvalidRequest."""
    found: dict[str, Any] = {"tools": tools.chat} if tools.chat else {}
    if request.tool_choice is None or (request.tool_choice == "auto" and not tools.chat):
        return found
    choice = tools.choice(request.tool_choice)
    if not tools.chat and tools.ignored:  # none is left to choose from
        return found if choice in ("auto", "none") else _without_choice(tools)
    return {**found, "tool_choice": choice}


def _without_choice(tools: OfferedTools) -> dict[str, Any]:
    tools.ignored.add("tool_choice")
    return {}


def _check(request: ResponsesRequest) -> None:
    texts = (request.input, request.instructions, request.previous_response_id, request.conversation)
    if all(text is None for text in texts):
        raise refusals.missing("input")
    if request.background and request.store is False:
        raise refusals.wrong_value("store", "a response in the background is stored until it is retrieved")
    if request.conversation is not None and request.previous_response_id is not None:
        raise refusals.wrong_value("conversation", "it cannot be combined with 'previous_response_id'")
    for name, why in REFUSED.items():
        if getattr(request, name) not in (None, False, [], {}):
            raise refusals.unsupported(name, f"'{name}' is not supported: {why}. Leave it out")
    if request.truncation not in (None, "auto", "disabled"):
        raise refusals.wrong_value("truncation", "expected 'auto' or 'disabled'", request.truncation)
    for name in request.include or ():
        if name not in INCLUDABLE:
            raise refusals.wrong_value("include", f"expected some of {', '.join(INCLUDABLE)}")


def _reasoning(given: dict[str, Any] | None) -> tuple[str | None, bool]:
    """The effort, and whether a summary is asked for."""
    if given is None:
        return None, False
    found = typed_at(given, _Reasoning, "reasoning")
    for name in ("summary", "generate_summary"):
        if getattr(found, name) not in (None, *SUMMARIES):
            expected = f"expected one of {', '.join(SUMMARIES)}"
            raise refusals.wrong_value(f"reasoning.{name}", expected, getattr(found, name))
    if found.mode not in (None, "standard"):
        raise refusals.wrong_value("reasoning.mode", "only 'standard' is supported", found.mode)
    if found.context not in (None, *CONTEXTS):
        raise refusals.wrong_value(
            "reasoning.context", f"expected one of {', '.join(CONTEXTS)}", found.context
        )
    return found.effort, bool(found.summary or found.generate_summary)


def _text(given: dict[str, Any] | None) -> dict[str, Any]:
    """The chat's `response_format` and `verbosity`."""
    if given is None:
        return {}
    text = typed_at(given, _Text, "text")
    chat: dict[str, Any] = {} if text.verbosity is None else {"verbosity": text.verbosity}
    if text.format is None:
        return chat
    found = typed_at(text.format, _Format, "text.format")
    if found.type in ("text", "json_object"):
        return chat | ({"response_format": {"type": found.type}} if found.type == "json_object" else {})
    if found.type != "json_schema":
        expected = "expected text, json_object or json_schema"
        raise refusals.wrong_value("text.format.type", expected, found.type)
    for name in ("name", "schema"):
        if getattr(found, name) is None:
            raise refusals.missing(f"text.format.{name}")
    names = ("name", "schema", "description", "strict")
    schema = {name: value for name in names if (value := getattr(found, name)) is not None}
    return chat | {"response_format": {"type": "json_schema", "json_schema": schema}}
