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
        self.app = app
        self.limits = limits
        self.has_access_log = has_access_log
        self.connections: set[HttpProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.now_s = 0.0
        """Time in ticks: while this process is paused, clients cannot be late."""
        self.date_header = b""
        self.is_draining = False
        self._drain_timeout_s = drain_timeout_s
        self._stop = asyncio.Event()
        self._is_forced = False

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `drain` is called, then finish open requests. Closes the listener."""
        loop = asyncio.get_running_loop()
        with listener:
            async with self.app.lifespan_context(self.app):
                server = await loop.create_server(lambda: HttpProtocol(self), sock=listener, backlog=BACKLOG)
                ticking = loop.create_task(self._tick())
                try:
                    await self._stop.wait()
                    server.close()
                    await self._finish()
                finally:
                    ticking.cancel()

    def drain(self) -> None:
        """Stop accepting and finish open requests; a second call waits for none of them."""
        self._is_forced = self.is_draining
        self.is_draining = True
        self._stop.set()

    async def _tick(self) -> None:
        while True:
            self.date_header = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
            await asyncio.sleep(TICK_S)
            self.now_s += TICK_S
            for connection in list(self.connections):
                connection.check_deadline(TICK_S)

    async def _finish(self) -> None:
        for connection in list(self.connections):
            connection.shut_down()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout_s):
                while (self.connections or self.tasks) and not self._is_forced:
                    await asyncio.sleep(DRAIN_POLL_S)
        if self.tasks and not self._is_forced:
            logger.error("%d requests were not finished within the drain timeout", len(self.tasks))
            for task in self.tasks:
                task.cancel()
            await asyncio.wait(self.tasks, timeout=SHUTDOWN_ERROR_TIMEOUT_S)
        for connection in list(self.connections):
            connection.abort()
