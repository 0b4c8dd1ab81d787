"""Upstreams that need a proxy, a CA bundle, HTTP/2 or a Unix socket, each against the real thing.

`test_openai` runs the whole contract of an upstream provider on this transport as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.answer import Relayed
from gateway.errors import ApiError
from gateway.providers.base import ModelCall
from gateway.providers.upstream.httpx_transport import HttpxTransport
from gateway.providers.upstream.openai import OpenAIProvider
from gateway.providers.upstream.transport import NetworkOptions, ReplyTimedOut
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from gateway.settings import SettingsError
from policies.upstream import UpstreamModel
from tests.gateway.providers.upstream.network import ANSWER, Api, forward_proxy, tls_api
from tests.gateway.providers.upstream.scripted_server import ScriptedServer, Seen, always, response, serving

PASSWORD = "canary-password"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[Api, str]]:
    async with tls_api(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with forward_proxy(tmp_path_factory.mktemp("proxy"), f"user:{PASSWORD}") as found:
        yield found


async def ask(upstream: UpstreamModel, proxy: str = "", **fields: object) -> bytes:
    """The answer's body; the provider is closed afterwards."""
    provider = OpenAIProvider("here", upstream, "k", proxy)
    body = {"model": "here", "messages": [{"role": "user", "content": "hi"}], **fields}
    call: ModelCall[Any] = ModelCall(typed(body, ChatRequest), body, "req_1")
    try:
        return await read(await provider.chat(call))
    finally:
        await provider.close()


async def read(answer: Relayed) -> bytes:
    if isinstance(answer.body, bytes):
        return answer.body
    return b"".join([piece async for piece in answer.body])


async def test_http2_is_negotiated_and_streams_pass(api: tuple[Api, str]) -> None:
    server, ca_bundle = api
    upstream = UpstreamModel(base_url=server.url, ca_bundle=ca_bundle, http2=True)
    assert json.loads(await ask(upstream)) == ANSWER
    streamed = await ask(upstream, stream=True)
    assert streamed.count(b"data: ") == 3 and streamed.endswith(b"data: [DONE]\n\n")
    assert server.versions == ["2", "2"]
    assert json.loads(await ask(UpstreamModel(base_url=server.url, ca_bundle=ca_bundle))) == ANSWER
    assert server.versions[-1] == "1.1"


async def test_http2_requests_share_a_connection(api: tuple[Api, str]) -> None:
    server, ca_bundle = api
    options = NetworkOptions(ca_bundle=ca_bundle, http2=True)
    transport = HttpxTransport(server.url, options, connect_timeout_s=5.0, headers={})

    async def post() -> bytes:
        reply = await transport.post("/chat/completions", {}, b"{}", 5.0)
        return await reply.read_all(5.0, 1 << 20)

    await post()
    assert [json.loads(body) for body in await asyncio.gather(*(post() for _ in range(20)))] == [ANSWER] * 20
    assert set(server.versions) == {"2"} and len(server.peers) == 1
    await transport.close()


async def test_an_abandoned_http2_stream_leaves_the_connection_usable(api: tuple[Api, str]) -> None:
    server, ca_bundle = api
    server.stalls = True
    options = NetworkOptions(ca_bundle=ca_bundle, http2=True)
    transport = HttpxTransport(server.url, options, connect_timeout_s=5.0, headers={})
    for _ in range(3):
        reply = await transport.post("/chat/completions", {}, b'{"stream": true}', 5.0)
        assert await reply.read(5.0)
        reply.close()
    reply = await transport.post("/chat/completions", {}, b"{}", 5.0)
    assert json.loads(await reply.read_all(5.0, 1 << 20)) == ANSWER
    await transport.close()


async def test_the_time_for_an_answer_begins_when_there_is_a_connection() -> None:
    async def silent(writer: asyncio.StreamWriter, seen: Seen) -> None:
        await seen.reader.read()
        writer.close()

    async with serving(silent) as server:
        transport = HttpxTransport(server.base_url, NetworkOptions(), connect_timeout_s=3600.0, headers={})
        with pytest.raises(ReplyTimedOut):
            await asyncio.wait_for(transport.post("/chat/completions", {}, b"{}", 0.1), 60)
        await transport.close()


async def test_only_the_given_cas_are_trusted(api: tuple[Api, str], tmp_path: Path) -> None:
    server, _ = api
    with pytest.raises(ApiError, match="TLS failed") as refused:
        await ask(UpstreamModel(base_url=server.url))
    assert (refused.value.status, refused.value.code) == (502, "upstream_unreachable")
    for content, why in (("", "holds no PEM certificate"), (None, "No such file")):
        path = tmp_path / "wrong.pem"
        path.unlink(missing_ok=True) if content is None else path.write_text(content)
        with pytest.raises(SettingsError, match=why):
            await ask(UpstreamModel(base_url=server.url, ca_bundle=str(path)))


async def test_a_proxy_carries_plain_and_tls_requests(api: tuple[Api, str], proxy: str) -> None:
    url = f"http://user:{PASSWORD}@{proxy}"
    server, ca_bundle = api
    async with serving(always(response(json.dumps(ANSWER).encode()))) as plain:
        assert json.loads(await ask(UpstreamModel(base_url=plain.base_url), url)) == ANSWER
        assert "proxy.py" in plain.seen[0].headers["via"]
        assert "proxy-authorization" not in plain.seen[0].headers
    upstream = UpstreamModel(base_url=server.url, ca_bundle=ca_bundle, http2=True)
    assert json.loads(await ask(upstream, url)) == ANSWER
    assert server.versions == ["2"]


async def test_a_proxy_that_refuses_is_an_error_without_its_password(
    api: tuple[Api, str], proxy: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, ca_bundle = api
    upstream = UpstreamModel(base_url=server.url, ca_bundle=ca_bundle)
    for url in (f"http://user:not-{PASSWORD}@{proxy}", f"http://{proxy}", "http://127.0.0.1:1"):
        with pytest.raises(ApiError) as refused:
            await ask(upstream, url)
        assert (refused.value.status, refused.value.code) == (502, "upstream_unreachable")
        assert PASSWORD not in refused.value.message + caplog.text
    assert server.versions == []


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "upstream.sock"
    server = ScriptedServer(always(response(json.dumps(ANSWER).encode())))
    listener = await asyncio.start_unix_server(server.handle, path)
    upstream = UpstreamModel(base_url="http://upstream.test/v1", unix_socket=str(path))
    assert json.loads(await ask(upstream)) == ANSWER
    assert server.seen[0].headers["host"] == "upstream.test"
    listener.close()
    await listener.wait_closed()
    path.unlink()
    with pytest.raises(ApiError, match="cannot be reached"):
        await ask(upstream)


async def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async with serving(always(response(b"ok"))) as server:
        transport = HttpxTransport(server.base_url, NetworkOptions(), connect_timeout_s=5.0, headers={})
        for _ in range(2):
            reply = await transport.post("/x", {}, b"{}", 5.0)
            assert await reply.read_all(5.0, 1 << 20) == b"ok"
            for task in list(server.tasks):
                task.cancel()
            await server.closed.get()
        assert server.connections == 2
        await transport.close()
