"""What an answer is made of: the nouns that providers, the pipeline and the public surface share.

A provider that generates text itself (our engine, the scripted fake) gives `Generated`: deltas that
`gateway.openai` puts into OpenAI's shapes. An encoder gives `Embedded`. A provider that already speaks
OpenAI's wire format gives `Relayed`: bytes to pass on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(slots=True)
class TokenInfo:
    """One generated (or echoed) token with its log-probability, for `logprobs` in the answer."""

    token: str  # as text; an incomplete UTF-8 sequence shows as U+FFFD
    token_bytes: bytes
    logprob: float | None  # None: the first prompt token has none
    top: list[tuple[str, bytes, float]] = field(default_factory=list)  # best first
    text_offset: int = 0  # characters from the start of the text; used by /v1/completions


@dataclass(slots=True)
class ToolCallDelta:
    """A piece of one tool call; only the first piece of a call has `call_id` and `name`."""

    index: int  # among the calls of one choice
    arguments: str = ""  # JSON; all pieces of a call concatenated are its arguments
    call_id: str = ""
    name: str = ""


@dataclass(slots=True)
class Delta:
    """A piece of one choice. Its texts never end inside a UTF-8 character or with half a stop string."""

    index: int
    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)  # of `text`; only when logprobs were asked for
    finish_reason: FinishReason | None = None  # on the choice's last delta only
    reasoning: str = ""  # comes before any text
    # A call's pieces come before those of the choice's next call.
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    stop_string: str = ""  # with the finish reason "stop": the request's stop string that was found
    # Ends a block of reasoning: the upstream that wrote it wants to have both back.
    reasoning_signature: str = ""


@dataclass(slots=True)
class Usage:
    """Token counts of one request, over all choices; complete when the answer has ended."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt's: a cache had them
    reasoning_tokens: int = 0  # of the completion's
    # Tokens drafted from the request's `prediction`. Rejected ones are not billed: they are no part of
    # completion_tokens.
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    cache_write_tokens: int = 0  # of the prompt's: an upstream's cache has stored them
    is_estimated: bool = False  # some of it: the upstream did not tell
    machine_seconds: float = 0.0  # that an engine of ours has worked for it; an upstream does not tell
    shows_machine_seconds: bool = False  # to the client


def total(usages: Sequence[Usage]) -> Usage:
    """The sum of all; the usage itself where there is one."""
    if len(usages) == 1:
        return usages[0]
    names = Usage.__dataclass_fields__
    return Usage(**{name: sum(getattr(each, name) for each in usages) for name in names})


@dataclass(slots=True)
class Generated:
    """Text that we generate: consume `deltas` to the end, or `aclose()` it to cancel and free memory."""

    deltas: AsyncIterator[Delta]
    usage: Usage
    shows_reasoning: bool = False  # the answer's shape has a field for it
    offers_tools: bool = False  # the content may be null
    finish_reasons: list[str] = field(default_factory=list)  # one per choice that has ended
    response_id: str = ""  # made by the shape
    ignored_fields: Sequence[str] = ()  # of the request, as its client wrote them


@dataclass(slots=True)
class Embedded:
    """One vector per input, in order: little-endian float32."""

    vectors: Sequence[bytes]
    usage: Usage
    ignored_fields: Sequence[str] = ()


@dataclass(slots=True)
class Relayed:
    """An answer in OpenAI's wire format: bytes when whole, an iterator of SSE bytes when streamed."""

    body: bytes | AsyncIterator[bytes]
    usage: Usage
    media_type: str = "application/json"
    finish_reasons: list[str] = field(default_factory=list)  # one per choice that has ended
    response_id: str = ""  # the upstream's
    response_model: str = ""  # its name of what has answered


Answer = Generated | Embedded | Relayed


async def close_answer(answer: Answer | None) -> None:
    """Release what the answer holds: engine sequences or an upstream connection. Idempotent."""
    source: AsyncIterator[object] | bytes | None = None
    if isinstance(answer, Generated):
        source = answer.deltas
    elif isinstance(answer, Relayed):
        source = answer.body
    await close_source(source)


async def close_source(source: object) -> None:
    """Close an iterator that is read no further, if it is one that can be closed."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


class Following(AsyncIterator[T]):
    """Reads another iterator, and closes it. A class: a generator that never started would not."""

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source

    async def __anext__(self) -> T:
        return await anext(self._source)

    async def aclose(self) -> None:
        """Close what is read from."""
        await close_source(self._source)
