"""A scripted provider that needs no model: for tests, and for benchmarks of the gateway alone."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable

from gateway.answer import Delta, Embedded, Generated, Usage
from gateway.providers.base import ModelCall
from gateway.requests.prompts import parse_prompts
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest

TextCall = ModelCall[ChatRequest] | ModelCall[CompletionRequest]
Script = Callable[[TextCall], AsyncIterator[Delta]]


async def greeting(call: TextCall) -> AsyncIterator[Delta]:
    """The default script: "Hello, world!" in three deltas for each choice."""
    request = call.request
    prompts = parse_prompts(request.prompt, "prompt") if isinstance(request, CompletionRequest) else [""]
    for index in range(request.num_choices * len(prompts)):
        for piece in ("Hello", ", world"):
            yield Delta(index, piece)
        yield Delta(index, "!", finish_reason="stop")


class FakeProvider:
    """Runs `script` for every request; records the calls and counts the scripts that ended."""

    def __init__(self, script: Script = greeting, *, prompt_tokens: int = 7) -> None:
        self.asked: list[TextCall | ModelCall[EmbeddingRequest]] = []
        self.num_ended = 0
        self._script = script
        self._prompt_tokens = prompt_tokens

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated:
        """Run the script."""
        return self._run(call)

    async def complete(self, call: ModelCall[CompletionRequest]) -> Generated:
        """Run the script."""
        return self._run(call)

    async def embed(self, call: ModelCall[EmbeddingRequest]) -> Embedded:
        """Three numbers per input: its index, its length, 1."""
        self.asked.append(call)
        inputs = parse_prompts(call.request.input, "input")
        vectors = [struct.pack("<3f", i, len(each), 1) for i, each in enumerate(inputs)]
        usage = Usage(prompt_tokens=self._prompt_tokens * len(inputs))
        return Embedded(vectors, usage)

    def _run(self, call: TextCall) -> Generated:
        self.asked.append(call)
        usage = Usage(prompt_tokens=self._prompt_tokens)
        request = call.request
        reasons = isinstance(request, ChatRequest) and request.reasoning_effort not in (None, "none")
        return Generated(self._counted(call, usage), usage, shows_reasoning=reasons)

    async def _counted(self, call: TextCall, usage: Usage) -> AsyncIterator[Delta]:
        try:
            async for delta in self._script(call):
                usage.completion_tokens += 1
                usage.reasoning_tokens += bool(delta.reasoning)
                yield delta
        finally:
            self.num_ended += 1
