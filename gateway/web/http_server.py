"""Serves the application on a listening socket, and drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from contextlib import AbstractAsyncContextManager
from email.utils import formatdate
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from gateway.settings import HttpLimits
from gateway.web.asgi_endpoint import SHUTDOWN_ERROR_TIMEOUT_S
from gateway.web.http_protocol import HttpProtocol
from gateway.web.server_state import ServerState

logger = logging.getLogger(__name__)

TICK_S = 0.25
"""How often deadlines of connections are checked: cheaper than timers, and exact enough."""
BACKLOG = 2048
DRAIN_POLL_S = 0.05


class Application(Protocol):
    """An ASGI application with start-up and shutdown."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        ...

    def lifespan_context(self, app: Any) -> AbstractAsyncContextManager[Any]:  # noqa: ANN401 - as Router's
        """Open and close what requests need."""
        ...


class HttpServer:
    """One worker's HTTP/1.1 server."""

    def __init__(
        self, app: Application, limits: HttpLimits, *, drain_timeout_s: float, has_access_log: bool = False
    ) -> None:
        self._app = app
        self.state = ServerState(app, limits, has_access_log=has_access_log)
        self._drain_timeout_s = drain_timeout_s
        self._is_forced = False

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `drain` is called, then finish open requests. Closes the listener."""
        loop = asyncio.get_running_loop()
        with listener:
            async with self._app.lifespan_context(self._app):
                server = await loop.create_server(
                    lambda: HttpProtocol(self.state), sock=listener, backlog=BACKLOG
                )
                ticking = loop.create_task(self._tick())
                try:
                    await self.state.stop.wait()
                    server.close()
                    await self._finish()
                finally:
                    ticking.cancel()

    def drain(self) -> None:
        """Stop accepting and finish open requests; a second call waits for none of them."""
        self._is_forced = self.state.is_draining
        self.state.is_draining = True
        self.state.stop.set()

    async def _tick(self) -> None:
        state = self.state
        while True:
            state.date_header = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
            await asyncio.sleep(TICK_S)
            state.now_s += TICK_S
            for connection in list(state.connections):
                connection.check_deadline(TICK_S)

    async def _finish(self) -> None:
        state = self.state
        for connection in list(state.connections):
            connection.shut_down()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout_s):
                while (state.connections or state.tasks) and not self._is_forced:
                    await asyncio.sleep(DRAIN_POLL_S)
        if state.tasks and not self._is_forced:
            logger.error("%d requests were not finished within the drain timeout", len(state.tasks))
            for task in state.tasks:
                task.cancel()
            await asyncio.wait(state.tasks, timeout=SHUTDOWN_ERROR_TIMEOUT_S)
        for connection in list(state.connections):
            connection.abort()
