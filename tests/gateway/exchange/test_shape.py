"""Our answers validated by the official client's pydantic models: strict types, no unknown members."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from gateway.answer import Delta, Usage
from gateway.exchange.shape import CollectedChoice
from gateway.openai.chat import ChatShape
from gateway.requests.types import ChatRequest
from tests.gateway.connection import events

CHAT: dict[str, Any] = {"model": "ours", "messages": [{"role": "user", "content": "Say it."}]}
COMPLETION: dict[str, Any] = {"model": "ours", "prompt": "Say it.", "max_tokens": 64}
USAGE = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}}


def check(kind: type[BaseModel], value: dict[str, Any], *unknown: str) -> None:
    """Raise unless `value` is a `kind` whose members outside of that model are `unknown`."""
    parsed = kind.model_validate_json(json.dumps(value), strict=True)
    assert set(_extra_members(parsed)) == set(unknown)


def _extra_members(value: object) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _extra_members(item)]
    if not isinstance(value, BaseModel):
        return []
    inner = [name for field in type(value).model_fields for name in _extra_members(getattr(value, field))]
    return [*(value.model_extra or {}), *inner]


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/v1/chat/completions", ChatCompletion, CHAT | {"n": 2, "service_tier": "auto"}),
        ("/v1/chat/completions", ChatCompletion, CHAT | {"metadata": {"a": "b"}, "max_tokens": 2}),
        ("/v1/completions", Completion, COMPLETION | {"prompt": ["a", "b"], "n": 2}),
        ("/v1/completions", Completion, COMPLETION | {"echo": True, "max_tokens": 0}),
    ],
)
async def test_whole_answers(
    engine_http: httpx.AsyncClient, path: str, kind: type[BaseModel], body: dict[str, Any]
) -> None:
    response = await engine_http.post(path, json=body)
    assert response.status_code == 200, response.text
    check(kind, response.json())


async def test_chunks_of_chats(engine_http: httpx.AsyncClient) -> None:
    response = await engine_http.post("/v1/chat/completions", json=CHAT | USAGE | {"n": 2})
    *chunks, done = events(response.content)
    assert done == "[DONE]"
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
        assert ("obfuscation" in chunk) is bool(chunk["choices"])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_chunks_of_completions(engine_http: httpx.AsyncClient) -> None:
    response = await engine_http.post("/v1/completions", json=COMPLETION | USAGE)
    *chunks, done = events(response.content)
    assert done == "[DONE]"
    for chunk in chunks:
        for choice in chunk["choices"]:  # the client's model does not allow null
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        check(Completion, chunk, *(("obfuscation",) if chunk["choices"] else ()))
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0


async def test_models(engine_http: httpx.AsyncClient) -> None:
    listing = (await engine_http.get("/v1/models")).json()
    assert listing["object"] == "list"
    for entry in listing["data"]:
        assert set(entry) <= {*Model.model_fields, "max_model_len", "mode", "pricing", "root"}
        Model.model_validate_json(json.dumps(entry), strict=True)


def signed_details(deltas: list[Delta], *, shows_reasoning: bool) -> tuple[list[Any], list[Any]]:
    """`reasoning_details` of the stream's chunks, and of the whole answer."""
    request = ChatRequest(model="m", messages=[{"role": "user", "content": "Hi."}])
    shape = ChatShape(request, "m", None, shows_reasoning=shows_reasoning)
    raw = shape.opening() + b"".join(map(shape.chunk, deltas))
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in raw.split(b"\n\n") if line]
    found = [chunk["choices"][0]["delta"].get("reasoning_details", []) for chunk in chunks]
    choice = CollectedChoice()
    for delta in deltas:
        choice.add(delta)
    message = json.loads(shape.whole([choice], Usage()))["choices"][0]["message"]
    return [detail for details in found for detail in details], message.get("reasoning_details", [])


def test_signed_reasoning_is_the_same_streamed_and_whole() -> None:
    deltas = [
        Delta(0, reasoning="h"),
        Delta(0, reasoning="m", reasoning_signature="one"),
        Delta(0, reasoning_signature="redacted:data"),
        Delta(0, "4"),
        Delta(0, reasoning_signature="gemini:x"),
    ]
    call = {"type": "reasoning.text", "text": "", "signature": "gemini:x"}
    expected = [
        {"type": "reasoning.text", "text": "hm", "signature": "one", "index": 0},
        {"type": "reasoning.encrypted", "data": "data", "index": 1},
        {**call, "index": 2},
    ]
    assert signed_details(deltas, shows_reasoning=True) == (expected, expected)
    hidden = [{**call, "index": 0}]
    assert signed_details(deltas, shows_reasoning=False) == (hidden, hidden)
