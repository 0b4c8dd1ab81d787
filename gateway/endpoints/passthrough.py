"""Paths of an upstream's API that the policies name: forwarded as they are, with the gateway's key."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

from gateway.auth import KeyRing
from gateway.endpoints.passthrough_cost import PassthroughCost
from gateway.endpoints.spec import new_exchange
from gateway.errors import Forbidden, NotFound, to_api_error
from gateway.exchange.endpoint import CHAT
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ServedModel
from gateway.pipeline.pipeline import Pipeline
from gateway.providers.upstream.apis import APIS
from gateway.providers.upstream.forwarding import SENT_HEADERS, Forwarder
from gateway.providers.upstream.httpx_transport import HttpxReply
from gateway.telemetry import spans
from gateway.telemetry.request import CallResult
from gateway.web.deadlines import Deadlines
from gateway.web.http_call import HttpCall
from gateway.web.multipart import check_origin
from policies.passthrough import PassthroughRule

PASSTHROUGH_METHODS = ("GET", "POST", "DELETE")
_PATH = re.compile(r"(?:[A-Za-z0-9/\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})+")
_QUERY = re.compile(rb"[!-\"$-~]*")
_AMBIGUOUS = frozenset("\\%\ufffd")


PASSED: Final = replace(CHAT, name="passthrough")
"""What records call it. No stage reads or asks anything for it."""


class PassthroughEndpoint:
    """One path and those below it."""

    def __init__(
        self,
        keys: KeyRing,
        pipeline: Pipeline,
        forwarder: Forwarder,
        rule: PassthroughRule,
        model: ServedModel,
    ) -> None:
        """`pipeline` has the limits of tenants and who gets records; `forwarder` is the model's."""
        self._keys = keys
        self._pipeline = pipeline
        self._forwarder = forwarder
        self._rule = rule
        self._model = model

    async def __call__(self, call: HttpCall) -> None:
        """Answer one request as the upstream does. Raises ApiError."""
        principal = self._keys.caller(call.authorization, call.internal_caller)
        check_origin(call, self._keys)
        deadlines = Deadlines(self._forwarder.upstream.total_timeout_s)
        exchange = new_exchange(PASSED, call, partial(call.read_json_bytes, 0), deadlines, None)
        exchange.principal, exchange.model = principal, self._model
        cost = PassthroughCost(self._model.price, call.scope["method"])
        try:
            await self._pipeline.note(exchange)
            await self._pass_on(call, exchange, cost)
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
            deadlines.close()
            self._settle(exchange, cost)
            exchange.error = None  # its traceback refers to this frame

    async def _pass_on(self, call: HttpCall, exchange: Exchange, cost: PassthroughCost) -> None:
        tenant, forwarder, telemetry = exchange.principal.tenant, self._forwarder, call.telemetry
        telemetry.annotate({spans.TENANT: tenant})
        if self._rule.tenants is not None and tenant not in self._rule.tenants:
            raise Forbidden("This API key may not use this path: the policies list those that may.")
        path = _path(call)
        exchange.admitted = await self._pipeline.admission.enter(exchange.principal)
        place = spans.place_of(forwarder.upstream.base_url, forwarder.upstream.model or "")
        spec = APIS.get(api := forwarder.upstream.api)
        telemetry.call_started(forwarder.name, (spec and spec.span_name) or api, {}, place=place)
        telemetry.num_attempts += 1
        body = await self._body(call, exchange.asked.deadlines)
        reply = await forwarder.send(call.scope["method"], path, _headers(call), body)
        await self._answer(call, reply, {**exchange.admitted.headers}, cost)

    def _settle(self, exchange: Exchange, cost: PassthroughCost) -> None:
        """Count what it has cost, and tell of it."""
        exchange.charged = charged = cost.charged(usage := cost.usage)
        self._pipeline.admission.settle(exchange.admitted, charged)
        self._pipeline.ledger.spend(exchange.principal.tenant, self._forwarder.name, charged.usd)
        error = exchange.error
        kind, status = ("", 0) if error is None else (error.kind, error.status)
        exchange.asked.telemetry.call_ended(
            CallResult(usage, error_type=kind, error_status=status, cost_usd=charged.usd)
        )
        self._pipeline.settle(exchange)

    async def _body(self, call: HttpCall, deadlines: Deadlines) -> AsyncIterator[bytes] | None:
        async def pieces() -> AsyncIterator[bytes]:
            async with aclosing(call.body_pieces(self._rule.max_body_bytes)) as body:
                async for piece in body:
                    yield piece
            deadlines.watch_disconnect(call.receive)

        if call.read_header("content-length") or call.read_header("transfer-encoding"):
            return pieces()
        async for _ in pieces():
            pass
        return None

    async def _answer(
        self, call: HttpCall, reply: HttpxReply, told: dict[str, str], cost: PassthroughCost
    ) -> None:
        """Send the upstream's answer, whose `cost` is counted."""
        headers = self._forwarder.returned_headers(reply) | told
        cost.begin(reply.status, headers.get("content-type", ""))
        async with aclosing(self._forwarder.pieces(reply)) as pieces:
            await call.start_body(headers, reply.status)
            async for piece in pieces:
                call.telemetry.chunk()
                cost.add(piece)
                await call.write(piece)
        await call.end_stream()


def _headers(call: HttpCall) -> dict[str, str]:
    """The headers to forward, with request id and trace."""
    headers = {name: value for name in SENT_HEADERS if (value := call.read_header(name))}
    return {**headers, "x-request-id": call.request_id, **call.telemetry.propagation()}


def _path(call: HttpCall) -> str:
    """The path below /v1, as sent, with its query. Raises NotFound for one that would lead elsewhere.

    What servers read in different ways is not passed on: encoded slashes, backslashes and percent signs,
    control characters, bytes that are not UTF-8, empty segments.
    """
    raw: bytes = call.scope["raw_path"]
    query: bytes = call.scope["query_string"]
    path, text = raw.decode("latin-1"), unquote_to_bytes(raw).decode(errors="replace")
    segments = text.split("/")
    if {".", ".."} & set(text.replace("\\", "/").split("/")):
        raise NotFound("A path with '.' or '..' is not passed on.", code="unknown_url")
    is_plain = text.isprintable() and not _AMBIGUOUS & set(text) and len(segments) == path.count("/") + 1
    if not is_plain or not _PATH.fullmatch(path) or "" in segments[1:-1] or not _QUERY.fullmatch(query):
        raise NotFound(
            "A path with odd escapes or characters is not passed on: encode UTF-8, once, and no slash.",
            code="unknown_url",
        )
    path = path.removeprefix("/v1")
    return f"{path}?{query.decode('ascii')}" if query else path
