"""Disconnects free memory, slow readers do not delay others, a shared prefix is computed once."""

from __future__ import annotations

import json
import secrets
import socket

import httpx
import openai

from tests.e2e.conftest import MODEL
from tests.e2e.server import Server
from tests.e2e.test_openai_sdk import ask

LONG_TOKENS = 300
MAX_GROWTH_BYTES = 64 * 2**20


def free_pages(server: Server) -> float:
    return server.metric("penstock_engine_free_pages", model=MODEL)


def idle(server: Server) -> None:
    """Wait until the engine reports that it is idle."""
    for name in ("running", "queue"):
        server.wait_metric(f"penstock_engine_{name}_requests", lambda value: value == 0, model=MODEL)


def test_a_disconnect_cancels_and_frees_the_pages(http: httpx.Client, server: Server) -> None:
    idle(server)
    total = server.metric("penstock_engine_total_pages", model=MODEL)
    labels = {"model": MODEL, "finish_reason": "abort"}
    aborted = server.metric("penstock_engine_requests_total", **labels)
    body = {"model": MODEL, "messages": ask("count"), "n": 16, "max_tokens": LONG_TOKENS, "ignore_eos": True}
    with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        assert response.status_code == 200
        next(response.iter_bytes())
    server.wait_metric("penstock_engine_requests_total", lambda value: value > aborted, **labels)
    server.wait_metric("penstock_engine_free_pages", lambda value: value == total, model=MODEL)
    server.settle()
    assert server.metric("penstock_requests_total", endpoint="chat", status="client_closed") >= 1


def test_a_disconnect_before_a_whole_answer_cancels_too(server: Server) -> None:
    idle(server)
    labels = {"model": MODEL, "finish_reason": "abort"}
    aborted = server.metric("penstock_engine_requests_total", **labels)
    body = {"model": MODEL, "messages": ask("count"), "n": 16, "max_tokens": LONG_TOKENS, "ignore_eos": True}
    with _send(server, body) as connection:
        server.wait_metric("penstock_engine_running_requests", lambda value: value > 0, model=MODEL)
        connection.close()
    server.wait_metric("penstock_engine_requests_total", lambda value: value > aborted, **labels)
    idle(server)


def test_a_slow_reader_delays_no_other_and_gets_everything(http: httpx.Client, server: Server) -> None:
    idle(server)
    before = server.metric("process_resident_memory_bytes")
    body = {
        **{"model": MODEL, "messages": ask("count"), "n": 8, "max_tokens": LONG_TOKENS, "ignore_eos": True},
        **{"stream": True, "logprobs": True, "top_logprobs": 20, "temperature": 0},
    }
    with _send(server, body, receive_buffer_bytes=4096) as slow:
        # Nothing is read: the engine still finishes, and another client is served meanwhile.
        quick = http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": ask("hi"), "max_tokens": 2}
        )
        assert quick.status_code == 200
        idle(server)
        assert server.metric("process_resident_memory_bytes") - before < MAX_GROWTH_BYTES
        received = b""
        while piece := slow.recv(65536):
            received += piece
    assert received.count(b'"finish_reason":"length"') == 8
    assert b"data: [DONE]" in received[-64:]
    assert received.count(b'"top_logprobs":[{') == 8 * LONG_TOKENS


def test_a_shared_prefix_is_read_from_the_cache(client: openai.OpenAI, server: Server) -> None:
    story = f"{secrets.token_hex(4)} " + "one two three four five six seven eight nine ten " * 6

    def cached() -> tuple[int, int]:
        answer = client.chat.completions.create(model=MODEL, messages=ask(story), max_tokens=2, temperature=0)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0, answer.usage.prompt_tokens

    first, prompt = cached()
    hits = server.metric("penstock_engine_prefix_hit_tokens_total", model=MODEL)
    second, _ = cached()
    assert first < prompt // 2
    assert second >= prompt - 32  # all but the last page or so
    server.wait_metric(
        "penstock_engine_prefix_hit_tokens_total", lambda value: value >= hits + second, model=MODEL
    )


def _send(server: Server, body: dict[str, object], receive_buffer_bytes: int = 0) -> socket.socket:
    """A connection that has sent a chat request and read nothing."""
    connection = socket.socket()
    if receive_buffer_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    content = json.dumps(body).encode()
    fields = {"host": "x", "content-length": str(len(content)), "connection": "close", **server.headers}
    fields["content-type"] = "application/json"
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + content)
    return connection
