"""What the JSON of chat and completions has in common."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from gateway.answer import Delta, TokenInfo, ToolCallDelta, Usage

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
PADDING_STEP = 16
"""Obfuscated chunks reveal the length of their text only as a multiple of this, in characters."""


@dataclass(slots=True)
class CollectedChoice:
    """Collects the deltas of one choice for an answer that is not streamed."""

    text_pieces: list[str] = field(default_factory=list)
    reasoning_pieces: list[str] = field(default_factory=list)
    signed_reasoning: list[tuple[str, str]] = field(default_factory=list)  # blocks, each with its signature
    tokens: list[TokenInfo] = field(default_factory=list)
    tool_calls: list[ToolCallDelta] = field(default_factory=list)  # one per call, pieces joined
    finish_reason: str | None = None
    stop_string: str = ""

    @property
    def unsigned_reasoning(self) -> str:
        """What came after the last signature."""
        num_signed = sum(len(text) for text, _ in self.signed_reasoning)
        return "".join(self.reasoning_pieces)[num_signed:]

    def add(self, delta: Delta) -> None:
        """Append the next delta."""
        self.text_pieces.append(delta.text)
        self.reasoning_pieces.append(delta.reasoning)
        if delta.reasoning_signature:
            self.signed_reasoning.append((self.unsigned_reasoning, delta.reasoning_signature))
        self.tokens += delta.tokens
        for call in delta.tool_calls:
            if call.index == len(self.tool_calls):
                self.tool_calls.append(replace(call))  # the cache and other readers have this delta too
            else:
                self.tool_calls[call.index].arguments += call.arguments
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.stop_string = delta.stop_string or self.stop_string


class Shape(Protocol):
    """Encodes deltas as one endpoint's answer, whole or streamed."""

    response_id: str

    def opening(self) -> bytes:
        """Events before the first delta."""
        ...

    def chunk(self, delta: Delta) -> bytes:
        """The events of one delta; b"" when it holds nothing to show."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """Events after the last delta, `[DONE]` included."""
        ...

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        ...


def own_counts(usage: Usage) -> dict[str, Any]:
    """The member that OpenAI's and Anthropic's usage does not have, where the policies show it."""
    if not (usage.shows_machine_seconds and usage.machine_seconds):
        return {}
    return {"x_penstock": {"machine_seconds": round(usage.machine_seconds, 6)}}


def padding(text: str) -> bytes:
    """An `obfuscation` member that hides the length of `text` in a chunk."""
    return b',"obfuscation":"%s"' % secrets.token_hex(PADDING_STEP)[: -len(text) % PADDING_STEP].encode()
