"""Runs the pipeline for one request and sends its answer in the shape of the API that was called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from gateway.answer import Answer, Embedded, Generated, Relayed, close_answer
from gateway.endpoints.send_answer import send_generated, send_relayed, send_whole
from gateway.endpoints.spec import EndpointParts, EndpointSpec, new_exchange
from gateway.errors import ServerError, to_api_error
from gateway.exchange.exchange import Exchange
from gateway.exchange.translation import Translation
from gateway.providers.upstream.generated import in_deltas
from gateway.requests.field_support import listed_names
from gateway.requests.unknown_fields import names
from gateway.routing.exposed import EXPOSED_HEADERS
from gateway.web.deadlines import Deadlines
from gateway.web.error_format import renamed
from gateway.web.http_call import HttpCall

IGNORED_FIELDS_HEADER = "x-penstock-ignored-fields"


class ModelEndpoint:
    """Answers the calls of one endpoint with a model."""

    def __init__(self, spec: EndpointSpec, parts: EndpointParts) -> None:
        self._spec = spec
        self._pipeline = parts.pipeline
        self._max_body_bytes = parts.max_body_bytes
        self._total_timeout_s = parts.total_timeout_s
        self._translation = None if spec.translation is None else spec.translation(parts)

    async def __call__(self, call: HttpCall) -> None:
        """Answer one request, or raise the ApiError to send. The exchange is settled in any case."""
        translation = self._translation(call) if self._translation is not None else None
        deadlines = Deadlines(self._total_timeout_s)

        async def read_body() -> bytes:
            raw = await call.read_json_bytes(self._max_body_bytes)
            deadlines.watch_disconnect(call.receive)
            return raw

        exchange = new_exchange(self._spec, call, read_body, deadlines, translation)
        try:
            await self._pipeline.run(exchange)
            is_translated = translation is not None and translation.is_needed
            if exchange.answer is not None:
                await _send(
                    self._spec, exchange, exchange.answer, call, translation if is_translated else None
                )
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


def _send(
    spec: EndpointSpec, exchange: Exchange, answer: Answer, call: HttpCall, translation: Translation | None
) -> Awaitable[None]:
    if translation is not None and isinstance(answer, Relayed):
        answer = exchange.answer = in_deltas(answer)
    if isinstance(answer, Generated | Embedded):
        ignored = [*answer.ignored_fields, *names(exchange.unknown)]
        if translation is not None:
            ignored = [renamed(name, translation.names) for name in answer.ignored_fields]
            ignored += [*translation.ignored_fields, *names(exchange.unknown)]
        if ignored:
            exchange.response_headers[IGNORED_FIELDS_HEADER] = listed_names(ignored)
    if isinstance(answer, Generated):
        shape = spec.shape if translation is None else translation.shape
        if shape is None:
            raise ServerError(f"The endpoint {spec.name!r} has no shape for an answer of text.")
        finish = translation.finish if translation is not None else None
        return send_generated(exchange, answer, shape(exchange, answer), call, finish)
    if isinstance(answer, Embedded):
        if spec.encode is None:
            raise ServerError(f"The endpoint {spec.name!r} has no encoding for an answer of vectors.")
        return send_whole(exchange, spec.encode(exchange, answer), call)
    return send_relayed(exchange, answer, call)
