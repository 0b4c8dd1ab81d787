from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop
from starlette.routing import Router

from gateway.settings import HttpLimits
from gateway.web.http_server import HttpServer
from tests.gateway.web.raw import RawServer

Serve = Callable[..., RawServer]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of our workers: transports differ between loops."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves an application on a real socket; keyword arguments are HttpLimits."""
    servers: list[RawServer] = []

    def start(app: Router, drain_timeout_s: float = 5.0, **limits: float) -> RawServer:
        listener = socket.create_server(("127.0.0.1", 0))
        server = HttpServer(app, HttpLimits(**limits), drain_timeout_s=drain_timeout_s)  # type: ignore[arg-type]
        port = listener.getsockname()[1]
        servers.append(RawServer(server, port, asyncio.create_task(server.serve(listener))))
        return servers[-1]

    yield start
    for each in servers:
        await each.close()
