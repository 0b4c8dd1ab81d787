"""A scripted provider that speaks every API of an upstream, in the test's own process.

What it answers follows from the request: its tools, format, reasoning, images, and the last text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from aiohttp import web

from tests.e2e.apis.anthropic_api import AnthropicApi
from tests.e2e.apis.bedrock_api import BedrockApi
from tests.e2e.apis.gemini_api import GeminiApi
from tests.e2e.apis.openai_api import AzureApi, OpenAIApi
from tests.e2e.apis.scripted import Dialect, answer
from tests.e2e.http_thread import HttpThread

DIALECTS: tuple[Dialect, ...] = (OpenAIApi(), AzureApi(), AnthropicApi(), GeminiApi(), BedrockApi())


COUNT = 5
"""Tokens of every prompt."""


class ApiUpstream(HttpThread):
    """Listens on an ephemeral port until closed; `num_dropped` counts clients that left a stream."""

    def __init__(self) -> None:
        self.num_dropped = 0
        self.last_body = ""  # of a request
        self.last_headers: Mapping[str, str] = {}
        super().__init__()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for dialect in DIALECTS:
            for path in dialect.paths:
                router.add_post(path, partial(self._answer, dialect))

    async def _answer(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        self.last_body, self.last_headers = await request.text(), request.headers
        if request.path.endswith("/count_tokens"):
            return web.json_response({"input_tokens": COUNT})
        wants = dialect.wants(body)
        if "fail" in wants.last:
            error, headers = dialect.error()
            return web.json_response(error, status=429, headers=headers)
        parts = answer(wants)
        if not (body.get("stream") or "stream" in request.path):
            return web.json_response(dialect.whole(parts))
        response = web.StreamResponse(headers={"content-type": dialect.media_type})
        await response.prepare(request)
        for index, event in enumerate(dialect.events(parts)):
            await response.write(event)
            if "wait" in wants.last and index == dialect.first_text:
                await self._wait_until_dropped()
        return response

    async def _wait_until_dropped(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.num_dropped += 1
