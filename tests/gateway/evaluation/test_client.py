"""Lists, answers and errors as different servers word them."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, TypeVar

import pytest

from gateway.evaluation import bounded_http
from gateway.evaluation import client as module
from gateway.evaluation.client import (
    MAX_RETRIES,
    Answer,
    ApiClient,
    NotReachable,
    RequestFailed,
    Tokens,
)
from gateway.evaluation.price import TokenPrice
from tests.gateway.providers.upstream.scripted_server import ScriptedServer, Seen, always, response, serving

T = TypeVar("T")


async def with_client(
    body: bytes, do: Callable[[ApiClient], Awaitable[T]], status: int = 200, **headers: str
) -> T:
    async with serving(always(response(body, status, **headers))) as server:
        return await with_server(server, do)


async def with_server(server: ScriptedServer, do: Callable[[ApiClient], Awaitable[T]]) -> T:
    client = ApiClient(server.base_url, "k", 5.0)
    try:
        return await do(client)
    finally:
        await client.close()


async def ask(client: ApiClient) -> Answer:
    return await client.ask({"model": "m"})


def completion(message: dict[str, Any], choice: dict[str, Any] | None = None, **more: object) -> bytes:
    return json.dumps({"choices": [{"message": message, **(choice or {})}], **more}).encode()


@pytest.mark.parametrize(
    ("pricing", "price"),
    [
        ({"prompt": "0.0000025", "completion": "0.00001", "image": "0"}, ("0.0000025", "0.00001")),
        ({"prompt": 1e-7, "completion": 0}, ("1E-7", "0")),
        ({"prompt": "-1", "completion": "-1"}, None),
        ({"prompt": "free", "completion": "0"}, None),
        ({"prompt": "0.1"}, None),
        (None, None),
    ],
)
async def test_listed_prices(pricing: dict[str, Any] | None, price: tuple[str, str] | None) -> None:
    body = json.dumps({"object": "list", "data": [{"id": "m", "created": 1, "pricing": pricing}]}).encode()
    (model,) = await with_client(body, lambda client: client.models())
    expected = TokenPrice(Decimal(price[0]), Decimal(price[1])) if price else None
    assert (model.id, model.price) == ("m", expected)


async def test_answer_with_counts() -> None:
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": None},
    }
    message = {"role": "assistant", "content": " 42\n", "reasoning_content": "6*7=42", "refusal": None}
    body = completion(message, usage=usage, choice={"finish_reason": "stop"})
    async with serving(always(response(body))) as server:
        answer = await with_server(server, ask)
        assert server.seen[0].head == "POST /v1/chat/completions HTTP/1.1"
        assert server.seen[0].headers["authorization"] == "bearer k"
        assert server.seen[0].headers["content-type"] == "application/json"
        assert server.seen[0].headers["cache-control"] == "no-store"
    assert (answer.text, answer.is_cut, answer.tokens) == ("42", False, Tokens(7, 9, 4))
    assert answer.seconds > 0


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None}, ""),
        ({"content": "<think>\n6*7=42\n</think>\n\n42"}, "42"),
        ({"content": "so: 42</think>42"}, "42"),
        (
            {"content": "", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
            '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        ),
        (
            {"content": None, "tool_calls": [{"function": {"name": n, "arguments": ""}} for n in "fg"]},
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]},
            '<tool_call>\n{"name": "f", "arguments": "{x"}\n</tool_call>',
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
            '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
        ),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": None}}]},
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        ),
        *(
            (
                {"tool_calls": [{"function": {"name": "f", "arguments": odd}}]},
                f'<tool_call>\n{{"name": "f", "arguments": "{odd}"}}\n</tool_call>',
            )
            for odd in ("[" * 5000, "1" * 5000)
        ),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_text_for_the_graders(message: dict[str, Any], text: str) -> None:
    answer = await with_client(completion(message, choice={"finish_reason": "length"}), ask)
    assert (answer.text, answer.is_cut, answer.tokens) == (text, True, None)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (429, b'{"error": {"message": "slow down", "code": null}}', "429: slow down"),
        (400, b'{"error": "no such field"}', "400: no such field"),
        (502, b"<html>", "the server answered 502"),
        (400, b'{"error": {"message": null}}', "the server answered 400"),
        (400, b'{"object": "error", "message": "too long"}', "400: too long"),
        (422, b'{"detail": "no such field"}', "422: no such field"),
        (200, b'{"error": {"message": "quota"}}', "^the answer is an error: quota$"),
        (200, b'{"x": ' + b"[" * 100_000, "no chat completion"),
        (200, b"<html>", "no chat completion .*OpenAI-compatible"),
        (200, b'{"choices": []}', "holds no choice"),
        (200, b'{"choices": [{"text": "completion"}]}', "no chat completion"),
    ],
)
async def test_failures(status: int, body: bytes, message: str) -> None:
    with pytest.raises(RequestFailed, match=message) as caught:
        await with_client(body, ask, status, x_should_retry="false")
    assert caught.value.status == (status if status != 200 else 0)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_busy_and_broken_servers_are_asked_again(status: int) -> None:
    replies = iter(
        [
            response(b"", 429, retry_after_ms="1"),
            response(b"", status, retry_after_ms="1"),
            response(b"{}")[:-1],
            response(completion({"content": "42"})),
        ]
    )

    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(next(replies))
        writer.close()

    async with serving(script) as server:
        assert (await with_server(server, ask)).text == "42"
        assert len(server.seen) == 4


async def test_retries_are_bounded() -> None:
    async with serving(always(response(b"", 429, retry_after_ms="1"))) as server:
        with pytest.raises(RequestFailed, match="the server answered 429") as caught:
            await with_server(server, ask)
    assert caught.value.status == 429 and len(server.seen) == MAX_RETRIES + 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_refusals_are_not_retried(status: int) -> None:
    async with serving(always(response(b"", status))) as server:
        with pytest.raises(RequestFailed):
            await with_server(server, ask)
    assert len(server.seen) == 1


async def test_what_the_environment_holds_for_openai_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "canary")
    custom = "X-Team: canary\nauthorization: Bearer canary\nUser-Agent: canary\nAccept: canary"
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", custom)
    async with serving(always(response(completion({"content": "42"})))) as server:
        client = ApiClient(server.base_url, "", 5.0)
        await client.ask({"model": "m"})
        await client.close()
        await with_server(server, ask)
    assert "canary" not in str(server.seen) and "authorization" not in server.seen[0].headers
    assert server.seen[1].headers["authorization"] == "bearer k"
    assert server.seen[1].headers["user-agent"] == "penstock"


async def test_the_environments_proxies_are_the_gateways_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(always(response(b"", 502))) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert (await with_client(completion({"content": "42"}), ask)).text == "42"
    assert not proxy.seen


async def test_a_given_proxy_is_used() -> None:
    async with serving(always(response(completion({"content": "42"})))) as proxy:
        client = ApiClient("http://api.test/v1", "k", 5.0, f"http://user:pass@127.0.0.1:{proxy.port}")
        assert (await ask(client)).text == "42"
        await client.close()
    assert proxy.seen[0].head == "POST http://api.test/v1/chat/completions HTTP/1.1"
    assert proxy.seen[0].headers["proxy-authorization"] == "basic dxnlcjpwyxnz"  # the server lowers all


async def test_redirects_are_not_followed() -> None:
    async with serving(always(response(b"", 200))) as other:
        with pytest.raises(RequestFailed, match="the server answered 307") as caught:
            await with_client(b"", ask, 307, location=other.base_url)
    assert caught.value.status == 307 and not other.seen


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_an_error_with_status_200_is_retried_by_the_status_it_says(code: int) -> None:
    error = json.dumps({"error": {"message": "quota", "code": code}}).encode()
    replies = iter([response(error, retry_after_ms="1"), response(completion({"content": "42"}))])

    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(next(replies))

    async with serving(script) as server:
        assert (await with_server(server, ask)).text == "42"
        assert len(server.seen) == 2


@pytest.mark.parametrize("code", [429, 400])
async def test_an_error_with_status_200_may_say_its_status(code: int) -> None:
    body = json.dumps({"error": {"message": "quota", "code": code}}).encode()
    async with serving(always(response(body, retry_after_ms="1"))) as server:
        with pytest.raises(RequestFailed, match=f"^{code}: quota$") as caught:
            await with_server(server, ask)
    assert caught.value.status == code
    assert len(server.seen) == (MAX_RETRIES + 1 if code == 429 else 1)


@pytest.mark.parametrize("error", [None, {"message": "late", "code": 500}])
async def test_an_answer_counts_whatever_stands_beside_it(error: object) -> None:
    assert (await with_client(completion({"content": "42"}, error=error), ask)).text == "42"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b" " * 2000, {}),
        (gzip.compress(b" " * 2000), {"content_encoding": "gzip"}),
    ],
    ids=["plain", "gzip"],
)
@pytest.mark.parametrize("status", [200, 500])
async def test_too_long_answers_are_not_read(
    body: bytes, headers: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bounded_http.MAX_ANSWER_BYTES == 64 << 20
    monkeypatch.setattr(bounded_http, "MAX_ANSWER_BYTES", 1000)
    async with serving(always(response(body, status, **headers))) as server:
        with pytest.raises(RequestFailed, match="the answer is longer than"):
            await with_server(server, ask)
    assert len(server.seen) == 1


@pytest.mark.parametrize("retry_after_s", [1.5, 30.0])
async def test_a_retry_waits_as_long_as_the_server_says(
    retry_after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    async def wait(seconds: float) -> None:
        waits_s.append(seconds)

    monkeypatch.setattr("openai._base_client.anyio.sleep", wait)
    replies = iter(
        [response(b"", 429, retry_after=str(retry_after_s)), response(completion({"content": "42"}))]
    )

    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(next(replies))

    async with serving(script) as server:
        assert (await with_server(server, ask)).text == "42"
    assert waits_s == [retry_after_s]


@pytest.mark.parametrize(
    "usage", [{}, None, {"prompt_tokens": None, "completion_tokens": 5}, {"prompt_tokens": 5}, "many"]
)
async def test_tokens_that_were_not_counted(usage: object) -> None:
    answer = await with_client(completion({"content": "42"}, usage=usage), ask)
    assert (answer.text, answer.tokens) == ("42", None)


async def test_cut_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RETRIES", 1)
    cut = response(b'{"choices": []}')[:-3]
    async with serving(always(cut, close=True)) as server:
        with pytest.raises(RequestFailed, match="closed the connection"):
            await with_server(server, ask)


async def test_server_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RETRIES", 1)
    async with serving(always(b"")) as server:
        pass
    with pytest.raises(NotReachable, match="nothing answers at http://127.0.0.1"):
        await with_server(server, lambda client: client.models())
    with pytest.raises(NotReachable, match="nothing answers"):
        await with_server(server, ask)
