"""Runs the pipeline for one request and sends its answer in the shape of the API that was called."""

from __future__ import annotations

import asyncio

from gateway.answer import Embedded, Generated, Relayed, close_answer
from gateway.endpoints.send_answer import send_embedded, send_generated, send_relayed
from gateway.errors import to_api_error
from gateway.exchange.exchange import Endpoint, Exchange
from gateway.exchange.shape import Shape
from gateway.exchange.translation import StartTranslation, Translation
from gateway.openai.chat import chat_shape, model_and_fingerprint
from gateway.openai.completions import CompletionShape
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.stages.choose_model import EXPOSED_HEADERS
from gateway.providers.upstream.generated import generated
from gateway.requests.field_support import listed_names
from gateway.requests.types import ChatRequest, CompletionRequest
from gateway.requests.unknown_fields import names
from gateway.web.deadlines import Deadlines
from gateway.web.error_format import renamed
from gateway.web.http_call import HttpCall

IGNORED_FIELDS_HEADER = "x-penstock-ignored-fields"


class ModelEndpoint:
    """An endpoint that calls a model: chat, completions, embeddings, or what is translated to a chat."""

    def __init__(
        self,
        endpoint: Endpoint,
        pipeline: Pipeline,
        *,
        max_body_bytes: int,
        total_timeout_s: float,
        translation: StartTranslation | None = None,
    ) -> None:
        """`total_timeout_s` applies until a model is chosen, then that model's limits."""
        self._translation = translation
        self._endpoint = endpoint
        self._pipeline = pipeline
        self._max_body_bytes = max_body_bytes
        self._total_timeout_s = total_timeout_s

    async def __call__(self, call: HttpCall) -> None:
        """Answer one request, or raise the ApiError to send. The exchange is settled in any case."""
        translation = self._translation(call) if self._translation is not None else None
        deadlines = Deadlines(self._total_timeout_s)

        async def read_body() -> bytes:
            raw = await call.read_json_bytes(self._max_body_bytes)
            deadlines.watch_disconnect(call.receive)
            return raw

        exchange = Exchange(
            call.request_id,
            self._endpoint,
            call.telemetry,
            read_body,
            deadlines,
            call.authorization,
            call.cache_headers,
            call.read_header,
            call.internal_caller,
            translation.to_chat if translation is not None else None,
            translation.truncates if translation is not None else lambda: False,
        )
        try:
            await self._pipeline.run(exchange)
            is_translated = translation is not None and translation.is_needed
            await _send(exchange, call, translation if is_translated else None)
        except asyncio.CancelledError as cancelled:
            if deadlines.cancel_reason is None:
                exchange.error = to_api_error(cancelled)
                raise
            exchange.error = deadlines.error()
            raise exchange.error from None
        except Exception as failure:
            exchange.error = to_api_error(failure)
            raise
        finally:
            headers = exchange.response_headers
            call.error_headers = {name: headers[name] for name in EXPOSED_HEADERS if name in headers}
            deadlines.close()
            try:
                await close_answer(exchange.answer)
            finally:
                self._pipeline.settle(exchange)
                exchange.error = None  # its traceback refers to this frame, and so to the whole answer


async def _send(exchange: Exchange, call: HttpCall, translation: Translation | None) -> None:
    answer = exchange.answer
    if translation is not None and isinstance(answer, Relayed):
        answer = exchange.answer = generated(answer)
    if isinstance(answer, Generated | Embedded):
        ignored = [*answer.ignored_fields, *names(exchange.unknown)]
        if translation is not None:
            ignored = [renamed(name, translation.names) for name in answer.ignored_fields]
            ignored += [*translation.ignored_fields, *names(exchange.unknown)]
        if ignored:
            exchange.response_headers[IGNORED_FIELDS_HEADER] = listed_names(ignored)
    if isinstance(answer, Generated):
        finish = translation.finish if translation is not None else None
        await send_generated(exchange, answer, _shape(exchange, answer, translation), call, finish)
    elif isinstance(answer, Embedded):
        await send_embedded(exchange, answer, call)
    elif answer is not None:
        await send_relayed(exchange, answer, call)


def _shape(exchange: Exchange, answer: Generated, translation: Translation | None) -> Shape:
    if translation is not None:
        return translation.shape(exchange, answer)
    if isinstance(exchange.request, ChatRequest):
        return chat_shape(exchange, answer)
    assert isinstance(exchange.request, CompletionRequest)
    return CompletionShape(exchange.request, *model_and_fingerprint(exchange))
