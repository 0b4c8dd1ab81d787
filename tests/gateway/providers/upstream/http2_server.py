"""An HTTP/2 server with TLS whose second request meets a script; others get "ok"."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import trustme

Script = Callable[[h2.connection.H2Connection, int, asyncio.StreamWriter], None]
"""Takes the connection, the stream's id and the socket."""


@dataclass
class Http2Server:
    script: Script
    url: str = ""
    ca_bundle: str = ""
    num_requests: int = 0
    is_scripted: Callable[[int], bool] = lambda number: number == 2  # by number of the request, from 1

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while not writer.is_closing() and (data := await reader.read(65536)):
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.StreamEnded):
                        self.answer(connection, event.stream_id, writer)
                writer.write(connection.data_to_send())
        writer.close()

    def answer(
        self, connection: h2.connection.H2Connection, stream: int, writer: asyncio.StreamWriter
    ) -> None:
        self.num_requests += 1
        if self.is_scripted(self.num_requests):
            self.script(connection, stream, writer)
        else:
            connection.send_headers(stream, [(":status", "200")])
            connection.send_data(stream, b"ok", end_stream=True)


@contextlib.asynccontextmanager
async def serving_http2(script: Script, folder: Path) -> AsyncIterator[Http2Server]:
    """Serve on a free loopback port."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["h2"])
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = Http2Server(script, ca_bundle=str(folder / "ca.pem"))
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=context)
    server.url = f"https://localhost:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listener.close()
