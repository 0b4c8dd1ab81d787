"""A scripted OpenAI-compatible provider in the test's own process: what an upstream may do, on demand.

The last message chooses the behaviour: "status 429", "cut" (ends in mid-stream), "hold" (answers once
`released`), "drip" (a stream that goes on until it is `released` or its reader has `left`), "fault NAME
COUNT" (a model's first COUNT requests fail, see `_fail`); anything else is echoed.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from aiohttp import web

from tests.e2e.http_thread import HttpThread

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


@dataclass
class Seen:
    """One received request."""

    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)


class Upstream(HttpThread):
    """Listens on an ephemeral port until closed; `seen` has every request."""

    def __init__(self, *, is_sound: bool = False) -> None:
        """`is_sound`: it never fails, whatever a message asks for."""
        self._is_sound = is_sound
        self.seen: list[Seen] = []
        self.released = threading.Event()
        self.left = threading.Event()
        super().__init__()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._chat)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(Seen({k.lower(): v for k, v in request.headers.items()}, body))
        text = body["messages"][-1]["content"]
        while text.startswith("hold") and not self.released.is_set():
            await asyncio.sleep(0.01)
        if text.startswith("fault ") and not self._is_sound:
            name, count = text.split()[1:]
            if self.num_seen(body["model"]) <= int(count):
                return await self._fail(request, name, is_stream=bool(body.get("stream")))
        if text.startswith("status "):
            error = {"message": "scripted", "type": "scripted_error", "param": None, "code": "scripted"}
            return web.json_response(
                {"error": error}, status=int(text.split()[1]), headers={"retry-after": "7"}
            )
        if not body.get("stream"):
            message = {"role": "assistant", "content": f"echo: {text}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            return web.json_response(_shape("chat.completion", [choice]) | {"usage": USAGE})
        return await self._stream(request, text, body)

    def num_seen(self, model: str) -> int:
        """How many requests there were for a model of this name."""
        return sum(each.body["model"] == model for each in self.seen)

    async def _fail(self, request: web.Request, name: str, *, is_stream: bool) -> web.StreamResponse:
        """Fail: a status ("429-date" has a `retry-after` of that kind), no answer, or a part of it."""
        status, _, wait = name.partition("-")
        if status.isdecimal():
            after = formatdate(time.time() + 30, usegmt=True) if wait == "date" else wait
            return web.json_response(
                {"error": {"message": "scripted"}},
                status=int(status),
                headers={"retry-after": after} if after else {},
            )
        assert request.transport is not None
        if name == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        if name != "reset":
            kind = "text/event-stream" if is_stream else "application/json"
            response = web.StreamResponse(headers={"content-type": kind})
            await response.prepare(request)
            delta = {"role": "assistant", "content": "" if name == "role" else "part"}
            event = _event([{"index": 0, "delta": delta, "finish_reason": None}])
            await response.write(event if is_stream else event[6:30])
            if name == "stall":
                await asyncio.Event().wait()
        request.transport.abort()
        return web.Response()

    async def _stream(self, request: web.Request, text: str, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for i, piece in enumerate(("echo", ": ", text)):
            delta = {"role": "assistant", "content": piece} if i == 0 else {"content": piece}
            await response.write(_event([{"index": 0, "delta": delta, "finish_reason": None}]))
        while text == "drip" and not self.released.is_set():
            try:
                await response.write(_event([{"index": 0, "delta": {"content": "drop"}}]))
                await asyncio.sleep(0.02)
            except (ConnectionError, asyncio.CancelledError):
                self.left.set()
                raise
        if text == "cut":
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(_event([{"index": 0, "delta": {}, "finish_reason": "stop"}]))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(_event([], usage=USAGE))
        await response.write(b"data: [DONE]\n\n")
        return response


def _shape(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-up", "object": kind, "created": 1700000000, "model": "remote", "choices": choices}


def _event(choices: list[dict[str, Any]], **more: object) -> bytes:
    return b"data: " + json.dumps(_shape("chat.completion.chunk", choices) | more).encode() + b"\n\n"
