"""The JSON of /v1/responses, whole or as server-sent events in the documented order.

response.created, response.in_progress, the events of each output item, then response.completed,
response.incomplete or response.failed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from gateway.answer import Delta, TokenInfo, ToolCallDelta, Usage
from gateway.errors import ApiError, error_body
from gateway.exchange.shape import CollectedChoice, encode, own_counts
from gateway.openai.responses.items import EventWriter, ItemKind, OpenCall, OpenItem, Status
from gateway.openai.responses.request import ReadRequest
from gateway.requests.reasoning_details import signs_calls

ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
"""OpenAI's code of a failed response by HTTP status; every other one is a `server_error`."""
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseShape:
    """Encodes one response. Implements `gateway.exchange.shape.Shape`."""

    def __init__(
        self, read: ReadRequest, model: str, *, shows_reasoning: bool, response_id: str = ""
    ) -> None:
        """`model` is the resolved name; `response_id`: one that is known already."""
        self.response_id = response_id or "resp_" + secrets.token_hex(16)
        self.response: dict[str, Any] = {
            "id": self.response_id,
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            **_echoed(read),
        }
        self._shows_reasoning = shows_reasoning
        self._wants_summary = read.wants_summary
        self._tools = read.tools
        options = read.request.stream_options
        self._writer = EventWriter(pads=options is not None and bool(options.include_obfuscation))
        self._open: OpenItem | None = None
        self._open_call = -1
        self._finish_reason = "stop"

    def opening(self) -> bytes:
        """response.created and response.in_progress."""
        return self._event("response.created") + self._event("response.in_progress")

    def chunk(self, delta: Delta) -> bytes:
        """The events of one delta."""
        events = b""
        if delta.reasoning and self._shows_reasoning:
            events += self._add("reasoning", delta.reasoning)
        signature = delta.reasoning_signature
        if signature and (self._shows_reasoning or signs_calls(signature)):
            events += self._sign(signature)
        if delta.text or delta.tokens:
            events += self._add("message", delta.text, delta.tokens)
        for call in delta.tool_calls:
            events += self._call(call)
        self._finish_reason = delta.finish_reason or self._finish_reason
        return events

    def closing(self, usage: Usage) -> bytes:
        """The end of the last item, and the event with the whole response."""
        reason = INCOMPLETE.get(self._finish_reason)
        status: Status = "incomplete" if reason else "completed"
        events = self._close(status)
        self.response["status"] = status
        self.response["incomplete_details"] = {"reason": reason} if reason else None
        self.response["completed_at"] = None if reason else int(time.time())
        self.response["usage"] = usage_object(usage)
        return events + self._event(f"response.{status}")

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        for choice in choices[:1]:
            for text, signature in choice.signed_reasoning:
                self.chunk(Delta(0, reasoning=text, reasoning_signature=signature))
            self.chunk(Delta(0, reasoning=choice.unsigned_reasoning))
            self.chunk(Delta(0, "".join(choice.text_pieces), choice.tokens))
            self.chunk(Delta(0, tool_calls=choice.tool_calls))
            self._finish_reason = choice.finish_reason or "stop"
        self.closing(usage)
        return encode(self.response)

    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream that failed."""
        events = self._close("incomplete")
        self.response["status"] = "failed"
        code = ERROR_CODES.get(error.status, "server_error")
        message = error.message.encode("utf-8", "replace").decode()  # may quote a lone surrogate
        self.response["error"] = {"code": code, "message": message}
        return events + self._event("response.failed")

    def _event(self, kind: str) -> bytes:
        return self._writer.event(kind, {"response": self.response})

    def _add(self, kind: ItemKind, text: str, tokens: list[TokenInfo] | None = None) -> bytes:
        events, item = self._item(kind)
        return events + item.add(text, tokens or [])

    def _sign(self, signature: str) -> bytes:
        """End the reasoning that a signature is for; without text it is an item of its own."""
        events, item = self._item("reasoning")
        item.signature = signature
        return events + self._close("completed")

    def _call(self, call: ToolCallDelta) -> bytes:
        events, item = b"", self._open
        if item is None or item.call is None or call.index != self._open_call:
            self._open_call = call.index
            tool = self._tools.offered(call.name)
            events, item = self._begin(tool.kind, OpenCall(call.call_id, tool))
        return events + (item.add(call.arguments, []) if call.arguments else b"")

    def _item(self, kind: ItemKind) -> tuple[bytes, OpenItem]:
        """The open item of this kind, and the events that begin it if none is open."""
        if self._open is not None and self._open.kind == kind:
            return b"", self._open
        return self._begin(kind)

    def _begin(self, kind: ItemKind, call: OpenCall | None = None) -> tuple[bytes, OpenItem]:
        events = self._close("completed")
        index = len(self.response["output"])
        is_summary = kind == "reasoning" and self._wants_summary
        item = OpenItem(kind, index, self._writer, self.response_id, is_summary=is_summary, call=call)
        self._open = item
        return events + item.begin(), item

    def _close(self, status: Status) -> bytes:
        if self._open is None:
            return b""
        item, self._open = self._open, None
        events = item.end(status)  # first: it completes the item
        self.response["output"].append(item.item(status))
        return events


class StreamErrors:
    """Errors of one response; implements `gateway.web.error_format.ErrorFormat`."""

    request_id_header = b""

    def __init__(self, shape: ResponseShape) -> None:
        self._shape = shape

    def body(self, error: ApiError, request_id: str) -> bytes:
        """OpenAI's error body."""
        return error_body(error)

    def event(self, error: ApiError, request_id: str) -> bytes:
        """response.failed."""
        return self._shape.failed(error)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **own_counts(usage),
    }


def _echoed(read: ReadRequest) -> dict[str, Any]:
    """What a response repeats of its request, with the defaults of fields that were not set."""
    request = read.request
    text = request.text or {}
    reasoning = request.reasoning or {}
    return {
        "background": bool(request.background),
        "conversation": None if read.conversation_id is None else {"id": read.conversation_id},
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": read.is_stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium", **text},
        "tool_choice": request.tool_choice or "auto",
        "tools": read.tools.shown,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "user": request.user,
    }
