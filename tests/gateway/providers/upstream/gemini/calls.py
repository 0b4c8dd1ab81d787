"""Calls of a GeminiProvider to a scripted server, and the pieces of its answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.providers.base import ModelCall
from gateway.providers.upstream.gemini.provider import GeminiProvider
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from policies.upstream import UpstreamModel
from tests.gateway.providers.upstream.provider_calls import KEY
from tests.gateway.providers.upstream.scripted_server import ScriptedServer

USAGE = {
    "promptTokenCount": 20,
    "toolUsePromptTokenCount": 2,
    "cachedContentTokenCount": 16,
    "candidatesTokenCount": 6,
    "thoughtsTokenCount": 3,
    "totalTokenCount": 31,
}
PARTS: list[dict[str, Any]] = [
    {"text": "hm é", "thought": True},
    {"text": "Let me see."},
    {
        "functionCall": {"id": "call_1", "name": "add", "args": {"a": [1.10, 2]}},
        "thoughtSignature": "c2lnbmVk",
    },
    {"functionCall": {"id": "call_2", "name": "now", "args": {}}},
]
ANSWER = {
    "candidates": [{"content": {"parts": PARTS, "role": "model"}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": USAGE,
    "modelVersion": "there",
    "responseId": "r1",
}


def event(parts: list[dict[str, Any]], **members: object) -> bytes:
    candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **members}
    usage = {**USAGE, "candidatesTokenCount": 6 if members else 1}
    return b"data: %s\r\n\r\n" % json.dumps({"candidates": [candidate], "usageMetadata": usage}).encode()


EVENTS = (
    event([{"text": "hm ", "thought": True}])
    + event([{"text": "é", "thought": True}])
    + event([{"text": "Let me"}])
    + event([{"text": " see."}, PARTS[2]])
    + event([PARTS[3]])
    + event([{"text": "", "thoughtSignature": "c2lnbmVk"}], finishReason="STOP")
)
"""ANSWER as a stream."""


def call(**fields: object) -> ModelCall[Any]:
    body = {"model": "here", "messages": [{"role": "user", "content": "é"}], **fields}
    return ModelCall(typed(body, ChatRequest), body, "req_1", trace_headers={"traceparent": "00-a-b-01"})


@asynccontextmanager
async def provider(server: ScriptedServer, model: str = "gemini-3-there") -> AsyncIterator[GeminiProvider]:
    upstream = UpstreamModel(base_url=server.base_url, model=model, api="gemini")
    found = GeminiProvider("here", upstream, KEY)
    yield found
    await found.close()


EXPECTED = (
    "Let me see.",
    [("hm é", "gemini:c2lnbmVk")],
    [("call_1", "add", {"a": [1.10, 2]}), ("call_2", "now", {})],
    "tool_calls",
)
