"""Calls of an OpenAIProvider to a scripted server, and the pieces of its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from gateway.answer import Relayed
from gateway.errors import ApiError
from gateway.providers.base import ModelCall
from gateway.providers.upstream.openai import OpenAIProvider
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from policies.upstream import UpstreamModel
from tests.gateway.providers.upstream.scripted_server import (
    END,
    STREAM_HEAD,
    ScriptedServer,
    Seen,
    always,
    chunk,
)

Script = Callable[[asyncio.StreamWriter, Seen], Awaitable[None]]

KEY = "sk-canary-upstream"
ANSWER = {
    "id": "chatcmpl-9",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 4},
    },
}


TRACE = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "baggage": "secret=canary"}


def call(**fields: object) -> ModelCall[Any]:
    body = {"model": "here", "messages": [{"role": "user", "content": "é"}], **fields}
    return ModelCall(typed(body, ChatRequest), body, "req_1", tenant_salt="canary-salt", trace_headers=TRACE)


OPENED: list[OpenAIProvider] = []
"""Closed after each test."""


def opened(upstream: UpstreamModel, api_key: str | None = None) -> OpenAIProvider:
    OPENED.append(OpenAIProvider("here", upstream, api_key))
    return OPENED[-1]


def provider(server: ScriptedServer, **limits: float) -> OpenAIProvider:
    return opened(UpstreamModel(base_url=server.base_url, model="there", api_key_env="X", **limits), KEY)


def piece(text: str, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return json.dumps({"id": "c1", "choices": [choice], **more}).encode()


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


DONE = event(b"[DONE]")
GOOD = event(piece("a")) + event(piece("", "stop")) + DONE


def streaming(*pieces: bytes, end: bytes = END) -> Script:
    return always(STREAM_HEAD, *map(chunk, pieces), end, close=not end)


async def collect(answer: Relayed) -> bytes:
    assert not isinstance(answer.body, bytes)
    return b"".join([data async for data in cast(AsyncIterator[bytes], answer.body)])


async def failure(server: ScriptedServer, asked: ModelCall[Any] | None = None, **limits: float) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await provider(server, **limits).chat(asked or call())
    return caught.value
