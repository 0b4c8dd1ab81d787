"""Malformed input gets a clean error: never a 5xx, a traceback or a dead process."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.requests.field_support import CHAT, COMPLETIONS, EMBEDDINGS
from tests.e2e.conftest import MODEL
from tests.e2e.server import Server

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
JSON = {"content-type": "application/json"}
SETTINGS = settings(
    max_examples=80,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([MODEL, "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*CHAT, *COMPLETIONS, *EMBEDDINGS} - {"max_tokens", "max_completion_tokens"})


@pytest.fixture(autouse=True)
def stays_healthy(server: Server) -> Iterator[None]:
    """After each test the server still answers and has logged no traceback."""
    engines = server.engine_pids()
    yield
    assert server.is_ready() and server.engine_pids() == engines
    assert "Traceback" not in server.log


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, (response.status_code, response.text)
    if response.status_code >= 400:
        assert response.json()["error"]["message"]
        assert "Traceback" not in response.text


@SETTINGS
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200))
def test_random_bytes(http: httpx.Client, path: str, body: bytes) -> None:
    check(http.post(path, content=body, headers=JSON))


@SETTINGS
@given(path=st.sampled_from(PATHS), body=VALUES)
def test_random_json(http: httpx.Client, path: str, body: object) -> None:
    check(http.post(path, content=json.dumps(body).encode(), headers=JSON))


@SETTINGS
@given(
    path=st.sampled_from(PATHS[:3]),
    change=st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=2),
)
def test_good_requests_with_random_values(http: httpx.Client, path: str, change: dict[str, Any]) -> None:
    good: dict[str, Any] = {"model": MODEL, "max_tokens": 2}
    match path:
        case "/v1/chat/completions":
            good["messages"] = [{"role": "user", "content": "hi"}]
        case "/v1/completions":
            good["prompt"] = "hi"
        case _:
            good = {"model": "all-minilm-l6-v2", "input": "hi"}
    check(http.post(path, content=json.dumps(good | change).encode(), headers=JSON))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"model": "pico-small", "messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 2}',
        b'{"model": "\\u0000", "messages": []}',
        b'{"model": "pico-small", "messages": [{"role": "user", "content": "x"}], "seed": 1e999}',
        b'{"model": "pico-small", "messages": [{"role": "user", "content": "x"}], "max_tokens": 99999999999}',
        b'{"model": "pico-small", "model": "auto", "messages": [{"role": "user", "content": "x"}], "n": 2}',
        b"\xff\xfe{\x00}\x00",
        b'{"model": NaN}',
    ],
)
def test_awkward_json(http: httpx.Client, body: bytes) -> None:
    for path in PATHS[:3]:
        check(http.post(path, content=body, headers=JSON))


def test_random_bytes_instead_of_http(server: Server) -> None:
    random_ = random.Random(0)
    for _ in range(40):
        head = random_.choice(
            [b"", b"POST /v1/chat/completions HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n"]
        )
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(head + random_.randbytes(random_.randrange(1, 400)) + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := _receive(connection):
                answer += piece
        assert not answer or answer.split(b" ")[1] < b"500", answer


@pytest.mark.parametrize(
    "headers",
    [
        {"content-length": "-1"},
        {"content-length": "99999999999999999999"},
        {"authorization": "\u00ff" * 50},
        {"x-request-id": "x" * 5000},
        {"x-request-id": "a\tb\u00ff"},
        {"traceparent": "\u00ff\u00fe"},
        {"content-type": "text/plain"},
        {"content-encoding": "gzip"},
        {"expect": "100-continue"},
    ],
)
def test_strange_headers(server: Server, headers: dict[str, str]) -> None:
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    ).encode()
    fields = {
        "host": "x",
        "content-length": str(len(body)),
        "connection": "close",
        **server.headers,
    } | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in (fields | headers).items())
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode("latin-1") + b"\r\n" + body
        )
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := _receive(connection):
            answer += piece
    status = answer.split(b" ", 2)[1] if answer else b"400"
    assert status < b"500", answer


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:  # the server may close while it has not read all of our bytes
        return b""
