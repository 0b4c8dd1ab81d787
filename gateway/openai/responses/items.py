"""Output items while they are generated: each delta as server-sent events, and the finished items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from gateway.answer import TokenInfo
from gateway.exchange.shape import encode, padding
from gateway.openai.logprobs import chat_logprobs
from gateway.openai.responses.call_items import shell_action
from gateway.openai.responses.input_items import output_id
from gateway.openai.responses.tools import CallKind, Offered
from gateway.requests.custom_tools import CustomInput

Status = Literal["completed", "incomplete"]
ItemKind = Literal["message", "reasoning"] | CallKind
_TEXTS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The member that holds what the deltas of a call add up to."""
_DELTAS = {
    "message": b"response.output_text",
    "function_call": b"response.function_call_arguments",
    "custom_tool_call": b"response.custom_tool_call_input",
}


class EventWriter:
    """Numbers the events of one stream."""

    __slots__ = ("_pads", "sequence_number")

    def __init__(self, *, pads: bool = False) -> None:
        """`pads`: hide the lengths of deltas."""
        self.sequence_number = 0
        self._pads = pads

    def event(self, kind: str, members: dict[str, object]) -> bytes:
        """One event."""
        number, self.sequence_number = self.sequence_number, self.sequence_number + 1
        data = encode({"type": kind, **members, "sequence_number": number})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)

    def delta(self, kind: bytes, head: bytes, text: str, tail: bytes = b"") -> bytes:
        """A delta event. `head` holds the members that all deltas of an item share; they are encoded once."""
        number, self.sequence_number = self.sequence_number, self.sequence_number + 1
        pad = padding(text) if self._pads else b""
        return b'event: %s\ndata: {"type":"%s",%s,"delta":%s%s%s,"sequence_number":%d}\n\n' % (
            kind, kind, head, encode(text), tail, pad, number,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpenCall:
    """The call of a tool that is being generated."""

    call_id: str
    tool: Offered


@dataclass(slots=True)
class OpenItem:
    """The output item that is being generated: a message, reasoning or the call of a tool."""

    kind: ItemKind
    index: int  # in the output
    writer: EventWriter
    response_id: str
    is_summary: bool = False  # reasoning that is shown as a summary
    call: OpenCall | None = None  # of a tool
    signature: str = ""  # of reasoning
    item_id: str = ""
    pieces: list[str] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    _head: bytes = b""
    _input: CustomInput = field(default_factory=CustomInput)  # of a custom tool

    def __post_init__(self) -> None:
        self.item_id = output_id(self.kind, self.response_id, self.index)
        names = {"item_id": self.item_id, "output_index": self.index, **self._part_index()}
        self._head = encode(names)[1:-1]

    def begin(self) -> bytes:
        """The events before the first delta."""
        events = self._item_event("added", self.item("in_progress"))
        part = self._part("")
        return events if part is None else events + self._part_event("added", part)

    def add(self, text: str, tokens: list[TokenInfo]) -> bytes:
        """The event of one delta; b"" for what is shown at the end only."""
        if self.kind == "custom_tool_call":
            text = self._input.push(text)
        return self._added(text, tokens) if text or tokens else b""

    def _added(self, text: str, tokens: list[TokenInfo]) -> bytes:
        self.pieces.append(text)
        if self.call is not None and self.kind not in _TEXTS:
            return b""
        tail = b""
        if self.kind == "message":
            self.tokens += tokens
            tail = b',"logprobs":%s' % (encode(_logprobs(tokens)) if tokens else b"[]")
        return self.writer.delta(self._delta_kind() + b".delta", self._head, text, tail)

    def end(self, status: Status) -> bytes:
        """The events after the last delta."""
        rest = self._input.finish() if self.kind == "custom_tool_call" else ""
        held = self._added(rest, []) if rest else b""
        text = "".join(self.pieces)
        if self.call is not None and self.kind not in _TEXTS:
            return self._item_event("done", self.item(status))
        done: dict[str, object] = {_TEXTS.get(self.kind, "text"): text}
        if self.kind == "message":
            done["logprobs"] = _logprobs(self.tokens)
        events = held + self._event(self._delta_kind().decode() + ".done", done)
        part = self._part(text)
        if part is not None:
            events += self._part_event("done", part)
        return events + self._item_event("done", self.item(status))

    def item(self, status: str) -> dict[str, Any]:
        """The item; without content while in progress."""
        parts = []
        if status != "in_progress" and (part := self._part("".join(self.pieces))) is not None:
            parts = [part]
        head: dict[str, Any] = {"id": self.item_id, "type": self.kind, "status": status}
        if self.call is not None:
            text = "".join(self.pieces) if status != "in_progress" else ""
            return head | self._call_members(self.call, text)
        if self.kind == "message":
            return head | {"role": "assistant", "content": parts}
        shown, empty = ("summary", "content") if self.is_summary else ("content", "summary")
        signed = {"encrypted_content": self.signature} if self.signature else {}
        return head | {shown: parts, empty: []} | signed

    def _call_members(self, call: OpenCall, text: str) -> dict[str, Any]:
        members: dict[str, Any] = {"call_id": call.call_id}
        if self.kind == "local_shell_call":
            return members | {"action": shell_action(_json(text))}
        if self.kind == "tool_search_call":
            return members | {"arguments": _json(text) or {}, "execution": "client"}
        if call.tool.namespace:
            members["namespace"] = call.tool.namespace
        return members | {"name": call.tool.name, _TEXTS[self.kind]: text}

    def _delta_kind(self) -> bytes:
        if self.kind == "reasoning":
            return b"response.reasoning_summary_text" if self.is_summary else b"response.reasoning_text"
        return _DELTAS[self.kind]

    def _part_index(self) -> dict[str, int]:
        if self.call is not None:
            return {}
        return {"summary_index" if self.is_summary else "content_index": 0}

    def _part(self, text: str) -> dict[str, Any] | None:
        if self.call is not None:
            return None
        if self.kind == "reasoning":
            return {"type": "summary_text" if self.is_summary else "reasoning_text", "text": text}
        logprobs = _logprobs(self.tokens) if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _part_event(self, what: str, part: dict[str, Any]) -> bytes:
        name = "reasoning_summary_part" if self.is_summary else "content_part"
        return self._event(f"response.{name}.{what}", {"part": part})

    def _event(self, kind: str, members: dict[str, object]) -> bytes:
        place = {"item_id": self.item_id, "output_index": self.index, **self._part_index()}
        return self.writer.event(kind, {**place, **members})

    def _item_event(self, what: str, item: dict[str, Any]) -> bytes:
        return self.writer.event(f"response.output_item.{what}", {"output_index": self.index, "item": item})


def _json(text: str) -> Any:  # noqa: ANN401 - a model's JSON
    """What a model wrote as arguments: a call that is cut, or no JSON, is its text."""
    try:
        return msgspec.json.decode(text) if text else None
    except (ValueError, RecursionError):
        return text


def _logprobs(tokens: list[TokenInfo]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat_logprobs(tokens)["content"]
    return found
