"""Which requests are sent again, over HTTP/1.1 and HTTP/2: only those that are known to be unprocessed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import h2.connection
import h2.errors
import pytest

from gateway.providers.upstream.httpx_transport import HttpxTransport
from gateway.providers.upstream.transport import ConnectFailed, ConnectionBroken, NetworkOptions
from tests.gateway.providers.upstream.http2_server import Script, serving_http2
from tests.gateway.providers.upstream.scripted_server import ScriptedServer, Seen, response, serving
from tests.gateway.providers.upstream.transport_calls import ask, check_second_request

ANSWER = response(b"ok")


@asynccontextmanager
async def opened(url: str, options: NetworkOptions) -> AsyncIterator[HttpxTransport]:
    transport = HttpxTransport(url, options, connect_timeout_s=5.0, headers={})
    try:
        yield transport
    finally:
        await transport.close()


@pytest.mark.parametrize("has_unix_socket", [False, True])
@pytest.mark.parametrize(
    ("second", "is_sent_again"),
    [
        (b"", True),
        (b"H", False),
        (ANSWER[:30], False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
        (b"not HTTP\r\n\r\n", False),
    ],
    ids=["nothing", "a byte", "half of the headers", "100", "not HTTP"],
)
async def test_http_1_requests_are_sent_again_only_before_the_first_byte(
    second: bytes, is_sent_again: bool, has_unix_socket: bool, tmp_path: Path
) -> None:
    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        if len(server.seen) == 2:
            writer.write(second)
            writer.close()
        else:
            writer.write(ANSWER)

    async with serving(script) as server:
        path = tmp_path / "socket"
        on_socket = ScriptedServer(script)
        on_socket.seen = server.seen
        listener = await asyncio.start_unix_server(on_socket.handle, path)
        options = NetworkOptions(unix_socket=str(path) if has_unix_socket else "")
        async with opened(server.base_url, options) as transport:
            await check_second_request(transport, is_sent_again=is_sent_again)
        listener.close()
        assert len(server.seen) == (3 if is_sent_again else 2)
        assert server.connections == (0 if has_unix_socket else 1 + is_sent_again)


def reset(code: h2.errors.ErrorCodes) -> Script:
    def script(connection: h2.connection.H2Connection, stream: int, writer: asyncio.StreamWriter) -> None:
        connection.reset_stream(stream, code)

    return script


def goaway(num_processed_streams: int) -> Script:
    def script(connection: h2.connection.H2Connection, stream: int, writer: asyncio.StreamWriter) -> None:
        last = 2 * num_processed_streams - 1 if num_processed_streams else 0
        connection.close_connection(last_stream_id=last)

    return script


def close(*, after_a_frame: bool) -> Script:
    def script(connection: h2.connection.H2Connection, stream: int, writer: asyncio.StreamWriter) -> None:
        if after_a_frame:
            connection.increment_flow_control_window(1000)  # the request's body was consumed
        writer.write(connection.data_to_send())
        writer.close()

    return script


@pytest.mark.parametrize(
    ("script", "is_sent_again"),
    [
        (reset(h2.errors.ErrorCodes.INTERNAL_ERROR), False),
        (reset(h2.errors.ErrorCodes.CANCEL), False),
        (reset(h2.errors.ErrorCodes.NO_ERROR), False),
        (reset(h2.errors.ErrorCodes.REFUSED_STREAM), True),
        (goaway(0), True),
        (goaway(1), True),
        (goaway(2), False),
        (close(after_a_frame=False), True),
        (close(after_a_frame=True), False),
    ],
    ids=[
        "internal error",
        "cancel",
        "reset without error",
        "refused",
        "goaway before any",
        "goaway before it",
        "goaway after it",
        "closed",
        "closed after a frame",
    ],
)
async def test_http_2_requests_are_sent_again_only_where_unprocessed(
    script: Script, is_sent_again: bool, tmp_path: Path
) -> None:
    async with serving_http2(script, tmp_path) as server:
        options = NetworkOptions(http2=True, ca_bundle=server.ca_bundle)
        async with opened(server.url, options) as transport:
            await check_second_request(transport, is_sent_again=is_sent_again)
            assert server.num_requests == (3 if is_sent_again else 2)
            assert await ask(transport) == b"ok"


async def test_a_reset_that_another_streams_task_reads_is_not_sent_again(tmp_path: Path) -> None:
    """Two requests share the connection; the task that reads from it reads for both."""

    def reset_both(connection: h2.connection.H2Connection, stream: int, writer: asyncio.StreamWriter) -> None:
        held.append(stream)
        if len(held) == 2:
            for each in held:
                connection.reset_stream(each, h2.errors.ErrorCodes.INTERNAL_ERROR)

    held: list[int] = []
    async with serving_http2(reset_both, tmp_path) as server:
        options = NetworkOptions(http2=True, ca_bundle=server.ca_bundle)
        async with opened(server.url, options) as transport:
            assert await ask(transport) == b"ok"
            server.is_scripted = lambda number: number in (2, 3)
            results = await asyncio.gather(ask(transport), ask(transport), return_exceptions=True)
            assert [type(result) for result in results] == [ConnectionBroken] * 2
            assert server.num_requests == 3


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:99999", f"http://{'a' * 64}.test"])
async def test_proxies_that_cannot_be_are_connect_errors(proxy: str) -> None:
    async with opened("http://api.test/v1", NetworkOptions(proxy=proxy)) as transport:
        with pytest.raises(ConnectFailed):
            await ask(transport)
