"""The JSON of /v1/chat/completions. A chunk is joined from fragments that are encoded once per answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence

from gateway.answer import Delta, Generated, ToolCallDelta, Usage
from gateway.exchange.exchange import Exchange
from gateway.exchange.shape import DONE, CollectedChoice, encode, padding
from gateway.openai.logprobs import chat_logprobs
from gateway.openai.usage import usage_object
from gateway.requests.custom_tools import CustomInput, custom_names
from gateway.requests.reasoning_details import details, signs_calls
from gateway.requests.types import ChatRequest


class ChatShape:
    """Encodes one chat answer, whole or as chunks."""

    __slots__ = (
        "_collected",
        "_custom_names",
        "_custom_open",
        "_empty",
        "_heads",
        "_pads",
        "_request",
        "_shared",
        "_shows_reasoning",
        "_silent",
        "_tail",
        "_wants_usage",
        "response_id",
    )

    def __init__(
        self,
        request: ChatRequest,
        model: str,
        fingerprint: str | None,
        *,
        shows_reasoning: bool = False,
        offers_tools: bool = False,
    ) -> None:
        """`model` is the resolved name; `fingerprint` identifies the weights.

        With `shows_reasoning` every message and delta has `reasoning_content` beside `content`, because
        clients of DeepSeek's API read both unconditionally; vLLM's clients read `reasoning`.
        With `offers_tools` the content of a message with only tool calls is null.
        """
        self.response_id = "chatcmpl-" + secrets.token_hex(14)
        self._request = request
        self._shared: dict[str, object] = {
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        if request.service_tier is not None:
            self._shared["service_tier"] = "default"
        self._wants_usage = request.wants_usage
        self._pads = request.wants_obfuscation
        self._shows_reasoning = shows_reasoning
        self._empty = b"null" if offers_tools else b'""'
        # Choices without output so far: one that ends so has "" as its content, as without tools.
        self._silent = set(range(request.num_choices)) if offers_tools else set()
        self._collected: dict[int, CollectedChoice] = {}  # the reasoning of each choice: it may be signed
        self._custom_names = custom_names(request.tools)
        self._custom_open: dict[int, tuple[int, CustomInput]] = {}  # by choice: the call, its input
        self._heads: list[bytes] = []
        self._tail = b""

    def opening(self) -> bytes:
        """The role delta of each choice."""
        shared = encode(self._head("chat.completion.chunk"))[:-1]
        self._heads = [
            b'data: %s,"choices":[{"index":%d,"delta":' % (shared, index)
            for index in range(self._request.num_choices)
        ]
        self._tail = b',"usage":null' if self._wants_usage else b""
        role = b'{"role":"assistant","content":%s%s,"refusal":null},"logprobs":null,"finish_reason":null}]'
        no_reasoning = b',"reasoning_content":null' if self._shows_reasoning else b""
        return b"".join(head + role % (self._empty, no_reasoning) + self._end("") for head in self._heads)

    def chunk(self, delta: Delta) -> bytes:
        """One chunk each for reasoning, text, every tool call and the finish reason."""
        head = self._heads[delta.index]
        events = b""
        if delta.text or delta.tool_calls:
            self._silent.discard(delta.index)
        no_reasoning = b',"reasoning_content":null' if self._shows_reasoning else b""
        if delta.reasoning and self._shows_reasoning:
            events = (
                b'%s{"content":null,"reasoning_content":%s,"reasoning":%s},"logprobs":null,"finish_reason":null}]%s'
                % (head, *[encode(delta.reasoning)] * 2, self._end(delta.reasoning))
            )
            self._collected.setdefault(delta.index, CollectedChoice()).reasoning_pieces.append(
                delta.reasoning
            )
        signature = delta.reasoning_signature
        if signature and (self._shows_reasoning or signs_calls(signature)):
            events += self._signed(delta)
        if delta.text or delta.tokens:
            events += b'%s{"content":%s%s},"logprobs":%s,"finish_reason":null}]%s' % (
                head,
                encode(delta.text) if delta.text else self._empty,
                no_reasoning,
                encode(chat_logprobs(delta.tokens)) if delta.tokens else b"null",
                self._end(delta.text),
            )
        if delta.tool_calls or self._custom_open:
            events += self._calls(delta)
        if delta.finish_reason is not None:
            is_silent = delta.index in self._silent
            content = b'""' if is_silent else self._empty
            last = b'"content":%s%s' % (content, no_reasoning) if self._shows_reasoning or is_silent else b""
            reason = delta.finish_reason.encode()
            events += b'%s{%s},"logprobs":null,"finish_reason":"%s"}]%s' % (head, last, reason, self._end(""))
        return events

    def _signed(self, delta: Delta) -> bytes:
        """The chunk of a signature, with the reasoning that it is for: clients send both back."""
        choice = self._collected.setdefault(delta.index, CollectedChoice())
        choice.add(Delta(delta.index, reasoning_signature=delta.reasoning_signature))
        signed = choice.signed_reasoning
        found = encode({"reasoning_details": details(signed[-1:], len(signed) - 1)})
        head = self._heads[delta.index]
        return b'%s%s,"logprobs":null,"finish_reason":null}]%s' % (head, found, self._end(""))

    def closing(self, usage: Usage) -> bytes:
        """The usage chunk, if requested, and `[DONE]`."""
        if not self._wants_usage:
            return DONE
        last = {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_object(usage)}
        return b"data: %s\n\n%s" % (encode(last), DONE)

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        wants_logprobs = self._request.num_logprobs is not None
        body = {
            **self._head("chat.completion"),
            "choices": [
                {
                    "index": index,
                    "message": self._message(choice),
                    "logprobs": chat_logprobs(choice.tokens) if wants_logprobs else None,
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage_object(usage),
        }
        if self._request.metadata is not None:
            body["metadata"] = self._request.metadata
        return encode(body)

    def _message(self, choice: CollectedChoice) -> dict[str, object]:
        reasoning = "".join(choice.reasoning_pieces) or None
        shown: dict[str, object] = {}
        if self._shows_reasoning:
            shown = {"reasoning_content": reasoning, "reasoning": reasoning}
        signed = choice.signed_reasoning
        if not self._shows_reasoning:
            signed = [("", signature) for _, signature in signed if signs_calls(signature)]
        if signed:
            shown["reasoning_details"] = details(signed)
        text = "".join(choice.text_pieces)
        calls = [_whole_call(call, self._custom_names) for call in choice.tool_calls]
        return {
            "role": "assistant",
            "content": text if text or not calls else None,
            **shown,
            "refusal": None,
            "annotations": [],
            **({"tool_calls": calls} if calls else {}),
        }

    def _calls(self, delta: Delta) -> bytes:
        """A chunk for every piece of a call."""
        pieces = [piece for call in delta.tool_calls for piece in self._call_deltas(delta.index, call)]
        if delta.finish_reason is not None:
            pieces += self._custom_rest(delta.index)
        return b"".join(
            b'%s%s,"logprobs":null,"finish_reason":null}]%s'
            % (self._heads[delta.index], encode({"tool_calls": [piece]}), self._end(text))
            for piece, text in pieces
        )

    def _call_deltas(self, choice: int, call: ToolCallDelta) -> Iterator[tuple[dict[str, object], str]]:
        """What a piece of a call adds to the stream, each with its text."""
        number, reader = self._custom_open.get(choice, (-1, None))
        if number >= 0 and number != call.index:
            yield from self._custom_rest(choice)
            reader = None
        if call.name in self._custom_names:
            reader = CustomInput()
            self._custom_open[choice] = (call.index, reader)
            custom = {"name": call.name, "input": reader.push(call.arguments)}
            yield (
                {"index": call.index, "id": call.call_id, "type": "custom", "custom": custom},
                custom["input"],
            )
        elif reader is None:
            yield _call_delta(call), call.arguments
        elif text := reader.push(call.arguments):
            yield {"index": call.index, "custom": {"input": text}}, text

    def _custom_rest(self, choice: int) -> Iterator[tuple[dict[str, object], str]]:
        """What was held back of the call of a custom tool, which ends."""
        number, reader = self._custom_open.pop(choice, (-1, None))
        if reader is not None and (text := reader.finish()):
            yield {"index": number, "custom": {"input": text}}, text

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.response_id, "object": kind, **self._shared}

    def _end(self, text: str) -> bytes:
        return b"%s%s}\n\n" % (self._tail, padding(text) if self._pads else b"")


def _whole_call(call: ToolCallDelta, custom: frozenset[str]) -> dict[str, object]:
    if call.name in custom:
        reader = CustomInput()
        text = reader.push(call.arguments) + reader.finish()
        return {"id": call.call_id, "type": "custom", "custom": {"name": call.name, "input": text}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _call_delta(call: ToolCallDelta) -> dict[str, object]:
    """A piece of a streamed call; only the first has id, type and name."""
    if call.name:
        return {"index": call.index, **_whole_call(call, frozenset())}
    return {"index": call.index, "function": {"arguments": call.arguments}}


def chat_shape(exchange: Exchange, answer: Generated) -> ChatShape:
    """The shape of /v1/chat/completions."""
    assert isinstance(exchange.request, ChatRequest)
    return ChatShape(
        exchange.request,
        *model_and_fingerprint(exchange),
        shows_reasoning=answer.shows_reasoning,
        offers_tools=answer.offers_tools,
    )


def model_and_fingerprint(exchange: Exchange) -> tuple[str, str | None]:
    """The fields `model` and `system_fingerprint` of an answer."""
    model = exchange.chosen_model
    return model.name, model.engine.model.fingerprint if model.engine is not None else None
