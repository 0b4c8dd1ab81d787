"""A provider that says what it was asked, so that every answer is known; and what it must never be asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web

FORBIDDEN = "@private.example"
"""In e-mail addresses, which the guardrails mask before a request leaves."""
ATTACK = "ignore all previous instructions"
PIECE_CHARS, PIECE_S = 4, 0.02
"""A stream takes half a second: long enough for a kill to hit it."""


@dataclass(eq=False)
class Echo:
    """Answers with the text of the last message; keeps the texts that should not have come."""

    port: int = 0
    leaked: list[str] = field(default_factory=list)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """/v1/chat/completions."""
        body = await request.json()
        text = _text(body["messages"][-1]["content"])
        if FORBIDDEN in text or ATTACK in text.lower():
            self.leaked.append(text)
        if not body.get("stream"):
            return web.json_response(_completion(text))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            for start in range(0, len(text), PIECE_CHARS):
                await response.write(_event({"content": text[start : start + PIECE_CHARS]}, None))
                await asyncio.sleep(PIECE_S)
            await response.write(_event({}, "stop") + b"data: [DONE]\n\n")
        return response

    async def transcribe(self, request: web.Request) -> web.Response:
        """/v1/audio/transcriptions, which passes through: the body comes back."""
        return web.json_response({"text": (await request.read()).decode()})


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[Echo]:
    """Listen on a free port meanwhile."""
    upstream = Echo()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", upstream.chat)
    app.router.add_post("/v1/audio/transcriptions", upstream.transcribe)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.port = runner.addresses[0][1]
    try:
        yield upstream
    finally:
        await runner.cleanup()


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return str(content)


def _completion(text: str) -> dict[str, object]:
    message = {"role": "assistant", "content": text}
    return {
        **{"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "echo"},
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
    }


def _event(delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}
    return b"data: " + json.dumps({**shape, "model": "echo", "choices": [choice]}).encode() + b"\n\n"
