"""The seam between the pipeline and whatever answers: one protocol, two kinds of answer.

A provider that makes text itself (our engine, the scripted fake) gives `Generated`: deltas that
`gateway.openai` turns into OpenAI's shapes. One that already speaks OpenAI's wire format gives `Relayed`:
bytes to pass on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from gateway.tool_calls.deltas import CallDelta

if TYPE_CHECKING:
    from gateway.pipeline.exchange import Exchange

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(slots=True)
class TokenInfo:
    """One generated (or echoed) token with its log-probability, for `logprobs` in the answer."""

    token: str  # as text; an incomplete UTF-8 sequence shows as U+FFFD
    token_bytes: bytes
    logprob: float | None  # None: the first prompt token has none
    top: list[tuple[str, bytes, float]] = field(default_factory=list)  # best first
    text_offset: int = 0  # characters from the start of the text; used by /v1/completions


@dataclass(slots=True)
class Delta:
    """A piece of one choice. Texts never end inside a UTF-8 character nor hold a part of a stop string."""

    index: int
    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)  # of `text`; only when logprobs were asked for
    finish_reason: FinishReason | None = None  # on the choice's last delta only
    thought: str = ""  # what the model says to itself; comes before any text
    calls: list[CallDelta] = field(default_factory=list)  # pieces of tool calls


@dataclass(slots=True)
class Usage:
    """Tokens of one request, over all choices; complete when the deltas have ended."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    # Tokens drafted from the request's prediction. Rejected ones are no part of completion_tokens: nobody
    # pays for a guess that was wrong.
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(slots=True)
class Generated:
    """Text that we generated: consume `deltas` to the end, or `aclose()` it to cancel and free memory."""

    deltas: AsyncIterator[Delta]
    usage: Usage
    shows_thought: bool = False  # the answer's shape has a place for it
    may_call: bool = False  # tools were offered: its content may be null


@dataclass(slots=True)
class Relayed:
    """An answer already in OpenAI's wire format: bytes when whole, an iterator of SSE bytes when streamed."""

    body: bytes | AsyncIterator[bytes]
    usage: Usage
    media_type: str = "application/json"


class Provider(Protocol):
    """What can answer. Raises `gateway.errors.ApiError` (never a bare exception) when it cannot."""

    async def chat(self, exchange: Exchange) -> Generated | Relayed:
        """Answer /v1/chat/completions."""
        ...

    async def complete(self, exchange: Exchange) -> Generated | Relayed:
        """Answer /v1/completions."""
        ...

    async def embed(self, exchange: Exchange) -> Relayed:
        """Answer /v1/embeddings."""
        ...
