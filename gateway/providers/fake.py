"""A scripted provider: answers without any model. For tests, and for measuring the gateway alone."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable

from gateway.openai.embeddings import embeddings_body
from gateway.pipeline.exchange import Exchange
from gateway.providers.base import Delta, Generated, Relayed, Usage
from gateway.requests.prompts import parse_prompts
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest

Script = Callable[[Exchange], AsyncIterator[Delta]]


async def greeting(exchange: Exchange) -> AsyncIterator[Delta]:
    """The default script: "Hello, world!" in three deltas for each choice."""
    request = exchange.request
    assert request is not None and not isinstance(request, EmbeddingRequest)
    prompts = parse_prompts(request.prompt, "prompt") if isinstance(request, CompletionRequest) else [""]
    for index in range(request.num_choices * len(prompts)):
        for piece in ("Hello", ", world"):
            yield Delta(index, piece)
        yield Delta(index, "!", finish_reason="stop")


class FakeProvider:
    """Plays `script` for every request; keeps count of what it was asked and of what ended."""

    def __init__(self, script: Script = greeting, *, prompt_tokens: int = 7) -> None:
        self.asked: list[Exchange] = []
        self.num_ended = 0
        self._script = script
        self._prompt_tokens = prompt_tokens

    async def chat(self, exchange: Exchange) -> Generated:
        """Play the script."""
        return self._play(exchange)

    async def complete(self, exchange: Exchange) -> Generated:
        """Play the script."""
        return self._play(exchange)

    async def embed(self, exchange: Exchange) -> Relayed:
        """A vector of three numbers per input: its place, its length, 1."""
        request = exchange.request
        assert isinstance(request, EmbeddingRequest)
        self.asked.append(exchange)
        inputs = parse_prompts(request.input, "input")
        vectors = [struct.pack("<3f", i, len(each), 1) for i, each in enumerate(inputs)]
        usage = Usage(prompt_tokens=self._prompt_tokens * len(inputs))
        body = embeddings_body(
            vectors, "fake", usage.prompt_tokens, as_base64=request.encoding_format == "base64"
        )
        return Relayed(body, usage)

    def _play(self, exchange: Exchange) -> Generated:
        self.asked.append(exchange)
        usage = Usage(prompt_tokens=self._prompt_tokens)
        request = exchange.request
        thinks = isinstance(request, ChatRequest) and request.reasoning_effort not in (None, "none")
        return Generated(self._counted(exchange, usage), usage, shows_thought=thinks)

    async def _counted(self, exchange: Exchange, usage: Usage) -> AsyncIterator[Delta]:
        try:
            async for delta in self._script(exchange):
                usage.completion_tokens += 1
                usage.reasoning_tokens += bool(delta.thought)
                yield delta
        finally:
            self.num_ended += 1
