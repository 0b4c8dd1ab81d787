"""Requests of the gateway to itself reach its application as a client's do."""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send

from gateway.auth import InternalCaller
from gateway.batches.in_process import not_started, post
from gateway.web.http_call import INTERNAL_CALLER

CALLER = InternalCaller("team-a", is_admitted=True)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it was asked."""
    body = (await receive())["body"]
    headers = [(b"X-Tenant", scope[INTERNAL_CALLER].tenant.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": scope["path"].encode(), "more_body": True})
    await send({"type": "http.response.body", "body": body})


async def test_a_reply_is_collected() -> None:
    reply = await post(echo, "/v1/chat/completions", b"{}", CALLER)
    assert (reply.status, reply.body) == (200, b"/v1/chat/completions{}")


async def test_pieces_go_to_who_wants_them() -> None:
    pieces: list[bytes] = []
    reply = await post(echo, "/v1/responses", b"{}", CALLER, on_piece=pieces.append)
    assert (reply.body, pieces) == (b"", [b"/v1/responses", b"{}"])


async def test_a_request_before_the_application_is_there_says_so() -> None:
    with pytest.raises(RuntimeError, match="before its application was there"):
        await post(not_started, "/v1/responses", b"{}", CALLER)
