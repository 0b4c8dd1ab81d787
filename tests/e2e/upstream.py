"""A scripted OpenAI-compatible provider in the test's own process: what an upstream may do, on demand.

The last message chooses the behaviour: "status 429", "cut" (ends in mid-stream), "hold" (answers once
`released`); anything else is echoed.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
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

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.released = threading.Event()
        super().__init__()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._chat)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(Seen({k.lower(): v for k, v in request.headers.items()}, body))
        text = body["messages"][-1]["content"]
        while text.startswith("hold") and not self.released.is_set():
            await asyncio.sleep(0.01)
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

    async def _stream(self, request: web.Request, text: str, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for i, piece in enumerate(("echo", ": ", text)):
            delta = {"role": "assistant", "content": piece} if i == 0 else {"content": piece}
            await response.write(_event([{"index": 0, "delta": delta, "finish_reason": None}]))
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
