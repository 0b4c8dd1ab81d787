"""Counts a prompt's tokens, for the endpoints that answer with the count alone."""

from __future__ import annotations

from gateway.answer import Answer, Embedded, Usage
from gateway.endpoints.model_endpoint import IGNORED_FIELDS_HEADER
from gateway.endpoints.spec import CountPath, EndpointParts, EndpointSpec, new_exchange
from gateway.errors import NotFound
from gateway.exchange.shape import encode
from gateway.providers.base import ModelCall, Provider, TokenCounter
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.tool_calling import check_offerable
from gateway.requests.field_support import listed_names
from gateway.requests.tools import read_definitions
from gateway.requests.types import ChatRequest
from gateway.requests.unknown_fields import names
from gateway.web.deadlines import Deadlines
from gateway.web.http_call import HttpCall


class CountTokensEndpoint:
    """Counts with the tokenizer and chat template of the model that would answer, or asks its upstream."""

    def __init__(self, spec: EndpointSpec, counts: CountPath, parts: EndpointParts) -> None:
        """`spec`: the endpoint that would answer."""
        self._spec = spec
        self._pipeline = parts.pipeline
        self._max_body_bytes = parts.max_body_bytes
        self._total_timeout_s = parts.total_timeout_s
        self._counting = counts.start(parts)

    async def __call__(self, call: HttpCall) -> None:
        """Answer one request. Raises ApiError; NotFound for a model without a tokenizer here."""
        counting = self._counting(call)
        deadlines = Deadlines(self._total_timeout_s)

        async def read_body() -> bytes:
            return await call.read_json_bytes(self._max_body_bytes)

        exchange = new_exchange(self._spec, call, read_body, deadlines, counting)
        try:
            await self._pipeline.choose(exchange)
            model, request = exchange.chosen_model, exchange.request
            assert isinstance(request, ChatRequest)
            # A count runs no guardrails, so that a model's prompts must not leave for one.
            if isinstance(model.provider, TokenCounter) and not model.guardrails:
                asked = exchange.model_call(request)
                counted = await exchange.call(model, asked, _ask_count, exchange.asked.telemetry)
                num_tokens = counted.usage.prompt_tokens
            elif model.engine is not None:
                num_tokens = await _count(model.engine, request)
            else:
                raise NotFound(f"The model {model.name!r} has no tokenizer here.", param="model")
        finally:
            deadlines.close()
            self._pipeline.settle(exchange)
        if exchange.unknown:
            exchange.response_headers[IGNORED_FIELDS_HEADER] = listed_names(names(exchange.unknown))
        await call.respond(encode(counting.counted(num_tokens)), headers=exchange.response_headers)


async def _ask_count(provider: Provider, call: ModelCall[ChatRequest]) -> Answer:
    assert isinstance(provider, TokenCounter)  # as each target of its model
    return Embedded([], Usage(await provider.count_tokens(call)))


async def _count(engine: EngineProvider, request: ChatRequest) -> int:
    if request.tools is not None:
        check_offerable(engine.service.tokenizer.tool_use)
    tokens = await engine.service.prompts.encode_messages(
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        max_tokens=engine.model.hello().max_model_tokens,
        tools=None if request.tools is None else read_definitions(request.tools),
        variables=engine.reasoning(request.reasoning_effort, None).variables,
    )
    return len(tokens)
