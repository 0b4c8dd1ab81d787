"""Property tests: no body gets a 5xx, and every error has OpenAI's shape."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from gateway.requests.field_support import CHAT, COMPLETIONS
from policies.document import UnknownFields
from tests.gateway.conftest import MakeApp, http_client

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
JSON = {"content-type": "application/json"}
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("ours"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
ROLES = st.sampled_from(["user", "assistant", "system", "developer", "tool"])
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "refusal"]) | VALUES}, optional={"text": VALUES}
)
MESSAGES = st.fixed_dictionaries(
    {"role": ROLES | VALUES},
    optional={"content": st.text(max_size=9) | st.lists(PARTS | VALUES, max_size=2) | VALUES, "name": VALUES},
)


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["message"] and error["type"] == "invalid_request_error"
        assert "`" not in (error["param"] or "")


@SETTINGS
@given(
    path=st.sampled_from(PATHS), body=st.binary(max_size=80) | VALUES.map(lambda v: json.dumps(v).encode())
)
async def test_any_bytes(engine_http: httpx.AsyncClient, path: str, body: bytes) -> None:
    check(await engine_http.post(path, content=body, headers=JSON))


@SETTINGS
@given(change=st.dictionaries(st.sampled_from(sorted(CHAT)), VALUES, min_size=1, max_size=2))
async def test_chats_with_any_values(engine_http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    body = {"model": "ours", "messages": [{"role": "user", "content": "x"}], **change}
    check(await engine_http.post(PATHS[0], content=json.dumps(body).encode(), headers=JSON))


@SETTINGS
@given(messages=st.lists(MESSAGES, max_size=3), more=st.booleans())
async def test_chats_with_any_messages(
    engine_http: httpx.AsyncClient, messages: list[dict[str, Any]], more: bool
) -> None:
    body = {"model": "ours", "messages": messages, "continue_final_message": more}
    check(await engine_http.post(PATHS[0], content=json.dumps(body).encode(), headers=JSON))


@SETTINGS
@given(change=st.dictionaries(st.sampled_from(sorted(COMPLETIONS)), VALUES, min_size=1, max_size=2))
async def test_completions_with_any_values(engine_http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    body = {"model": "ours", "prompt": "x", **change}
    check(await engine_http.post(PATHS[1], content=json.dumps(body).encode(), headers=JSON))


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"ours","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"ours","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"model":"ours","messages":[{"role":"user","content":"x"}],"\\udfff":1}',
        b'{"model":"ours","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"model":"ours","messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 4000 + b"}",
        b'{"model":"ours","messages":' + b"[" * 100_000,
        b'{"model":"ours","messages":[{"role":"user","content":' + b'{"a":' * 50_000,
        b'{"model":"ours","messages":[{"role":"user","content":"x","x":' + b"[" * 900 + b"]" * 900 + b"}]}",
        b'{"model":"\\u0000","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"' + b"m" * 5000 + b'","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"ours","messages":[{"role":"user","content":"x"}],"' + b"f" * 5000 + b'":1}',
    ],
)
async def test_awkward_json_is_a_400(engine_http: httpx.AsyncClient, body: bytes) -> None:
    response = await engine_http.post(PATHS[0], content=body, headers=JSON)
    assert response.status_code in (400, 404)
    check(response)
    assert len(response.text) < 600


async def test_null_characters_are_text(engine_http: httpx.AsyncClient) -> None:
    body = {"model": "ours", "messages": [{"role": "user", "content": "a\x00b"}]}
    assert (await engine_http.post(PATHS[0], json=body)).status_code == 200


HEADER = "x-penstock-ignored-fields"
AGENT = {"verbosity": "low", "reasoning_effort": "high", "prompt_cache_options": {"ttl": "30m"}}
ENDPOINTS = {
    PATHS[0]: {"model": "ours", "messages": [{"role": "user", "content": "x"}]},
    PATHS[1]: {"model": "ours", "prompt": "x"},
}


@pytest.mark.parametrize("stream", [False, True])
async def test_ignored_fields_are_named_in_a_header(engine_http: httpx.AsyncClient, stream: bool) -> None:
    body = ENDPOINTS[PATHS[0]] | AGENT | {"stream": stream}
    response = await engine_http.post(PATHS[0], json=body)
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == "prompt_cache_options, reasoning_effort, verbosity"
    plain = await engine_http.post(PATHS[0], json=ENDPOINTS[PATHS[0]])
    assert plain.status_code == 200 and HEADER not in plain.headers


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_the_policy_says_what_happens_to_unknown_fields(
    make_app: MakeApp, provider: EngineProvider, path: str
) -> None:
    body = ENDPOINTS[path] | {"zz_mine": 1, "a\r\nb: c": 2}

    async def answer(unknown: UnknownFields | None, body: dict[str, Any]) -> httpx.Response:
        service = EngineService(
            Replicas([provider.client]), provider.service.tokenizer, unknown_fields=unknown
        )
        async with http_client(make_app(EngineProvider(service, "ours"))) as http:
            return await http.post(path, json=body)

    ignored = await answer("ignore", body)
    assert ignored.status_code == 200, ignored.text
    assert ignored.headers[HEADER] == "?, zz_mine"
    for unknown in (None, "refuse"):
        response = await answer(unknown, body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unknown_parameter")
        assert HEADER not in response.headers
    if path == PATHS[0]:
        for name, value in AGENT.items():
            response = await answer("refuse", ENDPOINTS[path] | {name: value})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)
