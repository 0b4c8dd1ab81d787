"""POST /v1/responses: answered now, or in the background."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from starlette.types import Message

from gateway.accounting.admission import Admission
from gateway.auth import KeyRing, Principal
from gateway.endpoints.responses.create import chat_of, named_by
from gateway.exchange.shape import encode
from gateway.exchange.user import user_of
from gateway.openai.responses.request import read_request
from gateway.openai.responses.shape import ResponseShape
from gateway.requests import refusals
from gateway.requests.parse import decode_body
from gateway.requests.unknown_fields import collecting
from gateway.stored.background import BackgroundResponses, Run
from gateway.stored.object_store import ObjectStore
from gateway.stored.send_events import send_events
from gateway.web.asgi_endpoint import Handler
from gateway.web.http_call import HttpCall


class ResponsesEndpoint:
    """Decides by the field `background`."""

    def __init__(
        self,
        keys: KeyRing,
        store: ObjectStore,
        background: BackgroundResponses,
        now: Handler,
        admission: Admission,
        *,
        max_body_bytes: int,
        drops_hosted: bool = False,
    ) -> None:
        """`now` answers the other requests, and those that `background` makes; `admission` has the limits.

        `drops_hosted`: see `read_request`.
        """
        self._drops_hosted = drops_hosted
        self._keys = keys
        self._store = store
        self._background = background
        self._now = now
        self._admission = admission
        self._max_body_bytes = max_body_bytes

    async def __call__(self, call: HttpCall) -> None:
        """Answer one request. Raises ApiError."""
        if call.internal_caller is None:
            principal = self._keys.identify(call.authorization)
            raw = await call.read_json_bytes(self._max_body_bytes)
            if b'"background"' in raw and (body := decode_body(raw)).get("background") is True:
                await self._begin(call, principal, body)
                return
            _unread(call, raw)
        await self._now(call)

    async def _begin(self, call: HttpCall, principal: Principal, body: dict[str, Any]) -> None:
        with collecting():  # its run checks it again, by the policy of its model
            read = read_request(body, drops_hosted=self._drops_hosted)
        if not self._store.is_enabled:
            what = "'background' is not supported: the policies store nothing. Leave it out"
            raise refusals.unsupported("background", what)
        tenant = principal.tenant
        user = user_of(tenant, read.request)
        admitted = await self._admission.enter(principal, read.request.model, user=user)
        told = {**admitted.headers}
        leaves = ExitStack()
        leaves.callback(self._admission.settle, admitted)
        try:
            with collecting():
                earlier, items, _ = await chat_of(read, self._store, principal)
            shape = ResponseShape(read, read.request.model, shows_reasoning=False)
            asked = encode(body | {"stream": True})
            is_stream, keep = bool(read.request.stream), named_by(read)
            run = Run(shape, tenant, self._store, is_stream, asked, keep, leaves.close, principal.key_id)
            begun = encode(shape.response)
            await self._background.begin(call, run, [*earlier, *items])
        except BaseException:
            leaves.close()
            raise
        if not run.keeps_events:
            await call.respond(begun, headers=told)
            return
        with self._background.following(tenant):
            await send_events(call, run.follow(0), told)


def _unread(call: HttpCall, raw: bytes) -> None:
    """Let the body be read again."""
    receive, bodies = call.receive, [raw]

    async def again() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        return await receive()

    call.receive = again
