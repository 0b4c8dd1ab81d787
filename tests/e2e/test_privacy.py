"""A canary in prompts and API keys does not reach any log, span, metric or error body."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.e2e.collector import HttpCollector
from tests.e2e.conftest import MODEL
from tests.e2e.server import Server, command_line, descendants
from tests.e2e.test_trace import trace_of, traced_chat


def bodies(canary: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests that fail in many ways, each with the canary where a prompt would be."""
    message = {"role": "user", "content": canary}
    good: dict[str, Any] = {"model": MODEL, "messages": [message], "max_tokens": 2}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{canary}"}}
    chat = "/v1/chat/completions"
    return [
        (chat, good),
        (chat, good | {"stream": True}),
        (chat, good | {"messages": canary}),
        (chat, good | {"messages": [canary]}),
        (chat, good | {"messages": [{"role": "user", "content": {"text": canary}}]}),
        (chat, good | {"messages": [{"role": "user", "content": [{"type": "text", "text": canary}, image]}]}),
        (chat, good | {"messages": [message | {"surprise": canary}]}),
        (chat, good | {"messages": [{"role": "user", "content": f"{canary} " * 20_000}]}),
        (chat, good | {"temperature": 99}),
        (chat, good | {"stop": [canary] * 9}),
        (chat, good | {"user": canary, "metadata": {"k": canary}}),
        (chat, good | {"model": "gone"}),
        (chat, good | {"model": "remote", "messages": [{"role": "user", "content": f"status 500 {canary}"}]}),
        ("/v1/completions", {"model": MODEL, "prompt": canary, "max_tokens": 2, "echo": False}),
        ("/v1/completions", {"model": MODEL, "prompt": {"x": canary}}),
        ("/v1/completions", {"model": MODEL, "prompt": [canary, 5]}),
        ("/v1/completions", {"model": MODEL, "prompt": "x", "suffix": canary}),
        (chat, good | {"messages": [{"role": canary, "content": "x"}]}),
        (chat, good | {"messages": [{"role": canary[:12], "content": "x"}]}),
        (chat, good | {f"{canary} and more": 1}),
        (chat, good | {"service_tier": canary}),
        (chat, good | {"verbosity": canary}),
        (chat, good | {"modalities": [canary]}),
        (chat, good | {"logit_bias": {canary: 1}}),
        ("/tokenize", {"model": MODEL, "prompt": f"{canary} ~" * 400_000}),
        ("/tokenize", {"model": MODEL, "messages": [{"role": canary, "content": "x"}]}),
        ("/detokenize", {"model": MODEL, "tokens": [canary]}),
        ("/v1/embeddings", {"model": "all-minilm-l6-v2", "input": [canary]}),
        ("/v1/embeddings", {"model": "all-minilm-l6-v2", "input": f"{canary} " * 2000}),
        ("/v1/embeddings", {"model": "all-minilm-l6-v2", "input": {"x": canary}}),
        ("/v1/embeddings", {"model": MODEL, "input": canary}),
        ("/tokenize", {"model": MODEL, "prompt": {"x": canary}}),
        *[(chat, good | fields) for fields in _fields(message)],
    ]


def _fields(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The canary in fields that are honoured and in fields that are refused."""
    canary = message["content"]
    tool = {"type": "function", "function": {"name": "look", "description": canary}}
    arguments = json.dumps({"of": canary})
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    broken = call | {"function": {"name": "look", "arguments": canary}}
    result = {"role": "tool", "tool_call_id": "c", "content": canary}
    text = f"{canary} is text"  # in the place of an identifier, which would be quoted
    named = {"type": "function", "function": {"name": text, "parameters": {"type": "array"}}}
    loose = {"type": "object", "properties": {text: {"type": "string"}}}
    strict = {"type": "function", "function": {"name": "look", "strict": True, "parameters": loose}}
    odd = {"type": "object", "properties": {text: {"type": canary}}}
    schema = {"type": "object", "properties": {canary: {"type": "string"}}, "required": [canary]}
    return [
        {"tools": [tool]},
        {"tools": [tool], "tool_choice": "required", "stream": True},
        {"tools": [tool], "tool_choice": canary},
        {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": canary}}}]},
        {"tools": [tool], "messages": [message, {"role": "assistant", "tool_calls": [call]}, result]},
        {"tools": [tool], "messages": [message, {"role": "assistant", "tool_calls": [broken]}, result]},
        {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": text}}},
        {"tools": [named]},
        {"tools": [tool | {"type": canary}]},
        {"tools": [strict]},
        {"tools": [{"type": "function", "function": {"name": "look", "parameters": odd}}]},
        {"messages": [message, {"role": "assistant", "tool_calls": [call | {"id": text}]}]},
        {"messages": [message, {"role": "tool", "tool_call_id": text, "content": canary}]},
        {"messages": [message, {"role": "assistant", "content": "", "reasoning": canary}, message]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
        {"guided_json": canary},
        {"guided_choice": [canary]},
        {"guided_regex": canary},
        {"prediction": {"type": "content", "content": canary}},
        {"prediction": {"type": "content", "content": [{"type": "text", "text": canary, "x": 1}]}},
        {"speculative": {"max_tokens": canary}},
        {"speculative": {"drafter": canary}},
        {"reasoning_effort": canary},
        {"reasoning_effort": "high"},
        *(
            {"model": "pico-large", "reasoning_effort": "high", "include_reasoning": shown, "max_tokens": 60}
            for shown in (True, False)
        ),
        {"chat_template_kwargs": {"enable_thinking": canary}},
    ]


def refused_grammars(canary: str) -> list[dict[str, Any]]:
    """Invalid grammars and schemas: no error quotes a part of them."""
    nowhere = {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{canary}"}}}
    text = f"{canary} is text"  # in the place of a key, which would be quoted
    loose = {"type": "object", "properties": {text: {"type": "string"}}, "additionalProperties": False}
    formats = [
        {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": strict}}
        for schema, strict in ((nowhere, None), (loose, True))
    ]
    return [
        {"guided_grammar": f'start: "{canary}" {canary}'},
        {"guided_grammar": f"start: {canary}", "stream": True},
        {"guided_grammar": f'{canary} ::= "a'},
        {"guided_grammar": f"start: <{canary}>"},
        {"guided_grammar": f"start: /(?={canary})/"},
        {"guided_regex": f"(?P<{canary}>a)(?P<{canary}>b)"},
        {"guided_regex": f"\\p{{{canary}}}"},
        {"guided_json": {"type": "object", "properties": {canary: False}, "required": [canary]}},
        {"guided_json": {"$ref": f"https://example.com/{canary}"}},
        {"guided_json": f"[{canary}"},
        {"guided_choice": [canary, 5]},
        {"guided_regex": f"({canary}"},
        {"guided_json": {"type": "object", "properties": {"a": {"type": canary}}}},
        {"guided_json": f'{{"type": "{canary}'},
        {"structured_outputs": {"regex": f"[{canary}"}},
        {"response_format": {"type": canary}},
        *[{"response_format": each} for each in formats],
    ]


def test_prompts_and_keys_stay_inside(
    http: httpx.Client, server: Server, collector: HttpCollector, canary: str
) -> None:
    for path, body in bodies(canary):
        response = http.post(path, json=body)
        if response.status_code != 200:
            assert canary not in response.text, (path, body.keys(), response.text[:500])
        assert canary not in str(response.headers)
    for fields in refused_grammars(canary):
        question = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        response = http.post("/v1/chat/completions", json=question | fields)
        assert response.status_code == 400 and len(response.text) < 1000, (fields, response.text)
        assert canary not in response.text, (fields, response.text)
    assert http.get("/v1/models", params={"key": canary}).status_code == 200
    broken = f'{{"messages": "{canary}", oops'.encode()
    raw = http.post("/v1/chat/completions", content=broken, headers={"content-type": "application/json"})
    assert raw.status_code == 400 and canary not in raw.text

    trace_id, _, _ = traced_chat(http, max_tokens=2)
    trace_of(collector, trace_id, "POST /v1/chat/completions", "engine.decode")
    assert canary.encode() not in collector.payload
    assert canary not in http.get("/metrics").text
    assert canary not in server.log


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/nothing"])
@pytest.mark.parametrize(
    "header", ["Bearer sk-{}", "Bearer {}", "{}", "Basic {}", "Bearer  sk-{} x", "Bearer sk-{}\u00e9"]
)
def test_a_wrong_key_is_not_repeated(server: Server, path: str, header: str) -> None:
    wrong = "0123wrongcanary4567"
    headers = {"authorization": header.format(wrong).encode("latin-1")}
    response = httpx.request(
        "GET" if path == "/v1/models" else "POST", server.root_url + path, headers=headers
    )
    assert response.status_code in (401, 404)
    assert wrong not in response.text
    assert wrong not in server.log


def test_keys_are_not_in_the_command_lines_of_child_processes(server: Server, canary: str) -> None:
    children = list(descendants(server.process.pid))
    assert children
    assert [pid for pid in children if canary.encode() in command_line(pid)] == []
