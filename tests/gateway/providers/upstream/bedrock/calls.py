"""Calls of a BedrockProvider to a scripted server, and the pieces of its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.providers.base import ModelCall
from gateway.providers.upstream.bedrock.provider import BedrockProvider
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from policies.upstream import UpstreamModel
from tests.gateway.providers.upstream.bedrock.aws_events import event
from tests.gateway.providers.upstream.scripted_server import ScriptedServer

CLAUDE = "eu.anthropic.claude-x-v1:0"
USAGE = {
    "inputTokens": 4,
    "outputTokens": 9,
    "totalTokens": 31,
    "cacheReadInputTokens": 16,
    "cacheWriteInputTokens": 2,
}
CONTENT: list[dict[str, Any]] = [
    {"reasoningContent": {"reasoningText": {"text": "hm é", "signature": "signed"}}},
    {"reasoningContent": {"redactedContent": "YWJj"}},
    {"text": "Let me see."},
    {"toolUse": {"toolUseId": "tool_1", "name": "add", "input": {"a": [1, 2]}}},
    {"toolUse": {"toolUseId": "tool_2", "name": "now", "input": {}}},
]
ANSWER = {
    "output": {"message": {"role": "assistant", "content": CONTENT}},
    "stopReason": "tool_use",
    "usage": USAGE,
    "metrics": {"latencyMs": 5},
}


def piece(index: int, **delta: object) -> bytes:
    return event("contentBlockDelta", contentBlockIndex=index, delta=delta)


def begin(index: int, identifier: str, name: str) -> bytes:
    use = {"toolUseId": identifier, "name": name}
    return event("contentBlockStart", contentBlockIndex=index, start={"toolUse": use})


EVENTS = (
    event("messageStart", role="assistant")
    + piece(0, reasoningContent={"text": "hm "})
    + piece(0, reasoningContent={"text": "é"})
    + piece(0, reasoningContent={"signature": "signed"})
    + event("contentBlockStop", contentBlockIndex=0)
    + piece(1, reasoningContent={"redactedContent": "YWJj"})
    + piece(2, text="Let me")
    + piece(2, text=" see.")
    + begin(3, "tool_1", "add")
    + piece(3, toolUse={"input": '{"a": '})
    + piece(3, toolUse={"input": "[1, 2]}"})
    + begin(4, "tool_2", "now")
    + piece(4, toolUse={"input": "{}"})
    + event("someNewEvent", anything=1)
    + event("messageStop", stopReason="tool_use")
    + event("metadata", usage=USAGE, metrics={"latencyMs": 5})
)
"""ANSWER as a stream."""
EXPECTED = (
    "Let me see.",
    [("hm é", "signed"), ("", "redacted:bedrock:YWJj")],
    [("tool_1", "add", {"a": [1, 2]}), ("tool_2", "now", {})],
    "tool_calls",
)


def call(**fields: object) -> ModelCall[Any]:
    body = {"model": "here", "messages": [{"role": "user", "content": "é"}], **fields}
    return ModelCall(typed(body, ChatRequest), body, "req_1", trace_headers={"traceparent": "00-a-b-01"})


@asynccontextmanager
async def provider(
    server: ScriptedServer, api_key: str | None = None, *, prompt_caching: bool = False
) -> AsyncIterator[BedrockProvider]:
    upstream = UpstreamModel(
        base_url=server.base_url.removesuffix("/v1"),
        model=CLAUDE,
        api="bedrock",
        prompt_caching=prompt_caching,
    )
    found = BedrockProvider("here", upstream, api_key)
    yield found
    await found.close()
