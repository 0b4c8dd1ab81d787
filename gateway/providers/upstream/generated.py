"""Relayed → Generated: OpenAI's answers, whole or streamed, as deltas like those of our engine.

For other APIs in front of an upstream, and for guardrails. It reads:

- reasoning as `reasoning_content` (DeepSeek), `reasoning` (vLLM, OpenRouter) or content parts (Mistral)
- tool calls without `index`, with one index for several calls, with `arguments` as an object, with the id or
  name repeated in every piece, and the older `function_call`
- finish reasons that are empty, come early, are repeated, or say "stop" after tool calls
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gateway.answer import Delta, FinishReason, Generated, Relayed, TokenInfo, ToolCallDelta, close_source
from gateway.errors import UpstreamFailed
from gateway.providers.upstream.answer_stream import DONE
from gateway.providers.upstream.sse import EventReader
from gateway.providers.upstream.transport import AnswerTooLong

CUSTOM_HEAD, CUSTOM_TAIL = '{"input":"', '"}'
"""Around the input of a custom tool's call, which the deltas show as a function's."""
FINISH_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",  # Mistral
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
"""Every other reason is a regular end: "stop", "eos", "end_turn"."""


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _Custom(msgspec.Struct, gc=False):
    name: str | None = None
    input: str | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    custom: _Custom | None = None


class _Logprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[_Logprob] | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Logprob] | None = None


class _Message(msgspec.Struct, gc=False):
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    text: str | None = None  # of a completion
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: Any = None  # vLLM: the stop string, or the id of the stop token


class _Piece(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None


_decode = msgspec.json.Decoder(_Piece).decode


def generated(answer: Relayed, *, offers_tools: bool = True) -> Generated:
    """The answer to a chat or completion as deltas; closing them closes the upstream's stream.

    `usage` is the relayed answer's own and complete when the deltas have ended. Finish reasons come after all
    text. Calls after the first come whole, at the end: an upstream may interleave their pieces. The deltas
    raise UpstreamFailed for an answer that is cut, and what the relayed stream raises.
    """
    deltas = RelayedDeltas(answer.body)
    return Generated(deltas, answer.usage, shows_reasoning=True, offers_tools=offers_tools)


def in_deltas(answer: Generated | Relayed) -> Generated:
    """The answer itself where it is in deltas already."""
    return generated(answer) if isinstance(answer, Relayed) else answer


class RelayedDeltas(AsyncIterator[Delta]):
    """The deltas of a relayed chat. A class: a generator that never started does not close its source."""

    def __init__(self, body: bytes | AsyncIterator[bytes]) -> None:
        self._body = body
        self._events = EventReader()
        self._choices: dict[int, _ChoiceState] = {}
        self._ready: deque[Delta] = deque()
        self._ended = False

    async def __anext__(self) -> Delta:
        """The next delta. Raises UpstreamFailed, or what the stream raises."""
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            await self._next()
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Stop: close the upstream's stream. Idempotent."""
        self._ended = True
        self._ready.clear()
        await close_source(self._body)

    async def _next(self) -> None:
        """Read one piece of the answer into `_ready`."""
        if isinstance(self._body, bytes):
            self._ended = True
            self._read(self._body)
            self._finish()
            return
        data = await anext(self._body, b"")
        try:
            events = self._events.feed(data) if data else self._events.close()
        except AnswerTooLong as error:
            raise _invalid(str(error)) from None
        for event in events:
            if event.strip() == DONE:
                data = b""
                break
            if event.strip():
                self._read(event)
        if not data:
            self._ended = True
            self._finish()

    def _read(self, event: bytes) -> None:
        try:
            choices = _decode(event).choices or ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _invalid("it is not the JSON that the API specifies") from None
        for choice in choices:
            state = self._choices.get(choice.index)
            if state is None:
                state = self._choices[choice.index] = _ChoiceState(choice.index)
            delta = state.read(choice)
            if delta is not None:
                self._ready.append(delta)

    def _finish(self) -> None:
        if not self._choices or not all(state.finish_reason for state in self._choices.values()):
            raise _invalid("it ended before it was complete")
        for state in self._choices.values():
            self._ready += state.last()


class _ChoiceState:
    """What must be remembered of one choice."""

    __slots__ = (
        "_call_ids",
        "_custom_calls",
        "_held",
        "_index",
        "_last_by_index",
        "_stop_string",
        "finish_reason",
    )

    def __init__(self, index: int) -> None:
        self._index = index
        self._call_ids: list[str] = []  # one per call
        self._last_by_index: dict[int, int] = {}  # the upstream's index → our latest call under it
        self._held: list[ToolCallDelta] = []  # calls after the first: their pieces may come interleaved
        self._custom_calls: set[int] = set()
        self._stop_string = ""
        self.finish_reason = ""

    def read(self, choice: _Choice) -> Delta | None:
        """The delta of one piece; None when it shows nothing."""
        if choice.finish_reason and not self.finish_reason:
            self.finish_reason = choice.finish_reason
            self._stop_string = choice.stop_reason if isinstance(choice.stop_reason, str) else ""
        message = choice.delta or choice.message
        if message is None:
            return Delta(self._index, choice.text) if choice.text else None
        text, reasoning = _texts(message)
        calls = self._calls(message) if message.tool_calls or message.function_call else []
        tokens = []
        if choice.logprobs is not None and choice.logprobs.content:
            tokens = [_token(entry) for entry in choice.logprobs.content]
        if not (text or reasoning or calls or tokens):
            return None
        return Delta(self._index, text, tokens, None, reasoning, calls)

    def _calls(self, message: _Message) -> list[ToolCallDelta]:
        pieces = message.tool_calls or []
        if message.function_call is not None:
            pieces.append(_Call(0, None, message.function_call))
        return [call for piece in pieces if (call := self._call(piece)) is not None]

    def last(self) -> list[Delta]:
        """The deltas that end the choice."""
        reason = FINISH_REASONS.get(self.finish_reason, "stop")
        if reason == "stop" and self._call_ids:
            reason = "tool_calls"
        end = Delta(self._index, finish_reason=reason)
        end.stop_string = self._stop_string if reason == "stop" else ""
        calls = [ToolCallDelta(0, CUSTOM_TAIL)] if 0 in self._custom_calls else []
        for call in self._held:
            call.arguments += CUSTOM_TAIL if call.index in self._custom_calls else ""
        calls += self._held
        return [Delta(self._index, tool_calls=calls), end] if calls else [end]

    def _call(self, call: _Call) -> ToolCallDelta | None:
        """A piece of the first call; None when it was added to those that are held back."""
        function = call.function or _Function()
        name = function.name if call.custom is None else call.custom.name
        number = self._number(call, name)
        if call.custom is not None:
            arguments = self._custom(number, call.custom)
        elif function.arguments is None:
            arguments = ""
        elif isinstance(function.arguments, str):
            arguments = function.arguments
        else:
            arguments = msgspec.json.encode(function.arguments).decode()
        piece = ToolCallDelta(number, arguments)
        if number == len(self._call_ids):
            piece.call_id = call.id or f"call_{self._index}_{number}"
            piece.name = name or ""
            self._call_ids.append(piece.call_id)
            if number > 0:
                self._held.append(piece)
        elif number > 0:
            self._held[number - 1].arguments += arguments
        return piece if number == 0 else None

    def _custom(self, number: int, custom: _Custom) -> str:
        """A piece of a custom tool's call, as one of the arguments of the function that stands for it."""
        text = msgspec.json.encode(custom.input or "").decode()[1:-1]
        if number < len(self._call_ids):
            return text
        self._custom_calls.add(number)
        return CUSTOM_HEAD + text

    def _number(self, call: _Call, name: str | None) -> int:
        """Which of our calls a piece belongs to; a new one has the number of calls so far."""
        new = len(self._call_ids)
        if call.index is None:
            if call.id and call.id in self._call_ids:
                return self._call_ids.index(call.id)
            return new if call.id or name or not new else new - 1
        known = self._last_by_index.get(call.index)
        if known is None or (call.id and name and call.id != self._call_ids[known]):
            self._last_by_index[call.index] = known = new
        return known


def _texts(message: _Message) -> tuple[str, str]:
    """The text and the reasoning of a message or delta."""
    reasoning = message.reasoning_content or ""
    if not reasoning and isinstance(message.reasoning, str):
        reasoning = message.reasoning
    content = message.content
    if isinstance(content, list):
        text = "".join(_part_text(part) for part in content)
        reasoning += "".join(_part_text(part, "thinking") for part in content)
    else:
        text = content or ""
    return text + (message.refusal or ""), reasoning


def _part_text(part: dict[str, Any], kind: str = "text") -> str:
    """The text of a part of this kind, which may itself consist of text parts; "" of other kinds."""
    if part.get("type") != kind:
        return ""
    found = part.get(kind)
    if isinstance(found, list):
        return "".join(_part_text(inner) for inner in found if isinstance(inner, dict))
    return found if isinstance(found, str) else ""


def _token(entry: _Logprob) -> TokenInfo:
    top = [(other.token, _bytes(other), other.logprob) for other in entry.top_logprobs or ()]
    return TokenInfo(entry.token, _bytes(entry), entry.logprob, top)


def _bytes(entry: _Logprob) -> bytes:
    try:
        return entry.token.encode() if entry.bytes is None else bytes(entry.bytes)
    except ValueError:  # a number that is no byte, or a lone surrogate
        raise _invalid("the bytes of a token are no bytes") from None


def _invalid(what: str) -> UpstreamFailed:
    message = f"The upstream of this model sent an invalid answer: {what}."
    return UpstreamFailed(message, code="upstream_invalid_response")
