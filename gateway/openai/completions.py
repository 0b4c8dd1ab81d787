"""The JSON of /v1/completions. A chunk is joined from fragments that are encoded once per answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from gateway.answer import Delta, Generated, Usage
from gateway.exchange.exchange import Exchange
from gateway.exchange.shape import DONE, CollectedChoice, encode, padding
from gateway.openai.chat import model_and_fingerprint
from gateway.openai.logprobs import completion_logprobs
from gateway.openai.usage import usage_object
from gateway.requests.types import CompletionRequest


class CompletionShape:
    """Encodes one completion, whole or as chunks; choice `i` of prompt `p` has the index `p * n + i`."""

    __slots__ = ("_head", "_pads", "_request", "_shared", "_tail", "response_id")

    def __init__(self, request: CompletionRequest, model: str, fingerprint: str | None) -> None:
        """`model` is the resolved name; `fingerprint` identifies the weights."""
        self.response_id = "cmpl-" + secrets.token_hex(14)
        self._request = request
        self._shared: dict[str, object] = {
            "id": self.response_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._head = b"data: %s" % encode(self._shared)[:-1]
        self._tail = b',"usage":null' if request.wants_usage else b""
        self._pads = request.wants_obfuscation

    def opening(self) -> bytes:
        """Empty: completions have no role chunk."""
        return b""

    def chunk(self, delta: Delta) -> bytes:
        """One chunk with the text and, in the last, the finish reason."""
        if not (delta.text or delta.tokens or delta.finish_reason):
            return b""
        return b'%s,"choices":[{"index":%d,"text":%s,"logprobs":%s,"finish_reason":%s}]%s%s}\n\n' % (
            self._head,
            delta.index,
            encode(delta.text),
            encode(completion_logprobs(delta.tokens)) if delta.tokens else b"null",
            encode(delta.finish_reason),
            self._tail,
            padding(delta.text) if self._pads else b"",
        )

    def closing(self, usage: Usage) -> bytes:
        """The usage chunk, if requested, and `[DONE]`."""
        if not self._request.wants_usage:
            return DONE
        return b"data: %s\n\n%s" % (
            encode({**self._shared, "choices": [], "usage": usage_object(usage)}),
            DONE,
        )

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        wants_logprobs = self._request.num_logprobs is not None
        return encode(
            {
                **self._shared,
                "choices": [
                    {
                        "index": index,
                        "text": "".join(choice.text_pieces),
                        "logprobs": completion_logprobs(choice.tokens) if wants_logprobs else None,
                        "finish_reason": choice.finish_reason,
                    }
                    for index, choice in enumerate(choices)
                ],
                "usage": usage_object(usage),
            }
        )


def completion_shape(exchange: Exchange, answer: Generated) -> CompletionShape:
    """The shape of /v1/completions."""
    assert isinstance(exchange.request, CompletionRequest)
    return CompletionShape(exchange.request, *model_and_fingerprint(exchange))
