"""Serves one of several versions of the application: a request sees one version from start to end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from gateway.web.asgi_endpoint import Resource
from gateway.web.http_call import ASKS, BEGUN, GOES_ON


@dataclass(eq=False, slots=True)
class _Version:
    serial: int
    app: Router
    resources: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    num_requests: int = 0
    is_idle: asyncio.Event = field(default_factory=asyncio.Event)  # set when replaced and without requests


class VersionedApp:
    """An ASGI application. `open` starts a version's resources, `switch` makes it the current one."""

    def __init__(self, serial: int, app: Router, background: Sequence[Resource] = ()) -> None:
        """`serial` is the number of the first version; `background` make requests to this application."""
        self._background = background
        self._current = _Version(serial, app)
        self._opened: dict[int, _Version] = {}  # started, neither current nor replaced
        self._replaced: dict[int, _Version] = {}  # with requests
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def serial(self) -> int:
        """The number of the current version."""
        return self._current.serial

    @property
    def oldest_serial(self) -> int:
        """The lowest number of those with requests."""
        return min(self._replaced, default=self.serial)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the current version, and again where it outlives that."""
        await self._pass(scope, receive, send)
        while scope.get(GOES_ON) == ASKS:
            scope[GOES_ON] = BEGUN
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        version = self._current
        version.num_requests += 1
        try:
            await version.app(scope, receive, send)
        finally:
            version.num_requests -= 1
            if version.num_requests == 0 and version is not self._current:
                version.is_idle.set()

    @contextlib.asynccontextmanager
    async def lifespan_context(self, _: object) -> AsyncIterator[None]:
        """Open the first version; at the end close whichever are open."""
        await _start(self._current)
        for resource in self._background:
            await resource.start()
        try:
            yield
        finally:
            for resource in self._background:
                await resource.close()
            for task in self._retiring:
                task.cancel()
            await asyncio.gather(*self._retiring, return_exceptions=True)
            for version in (*self._replaced.values(), *self._opened.values(), self._current):
                await version.resources.aclose()

    async def open(self, serial: int, app: Router) -> None:
        """Start a version's resources."""
        version = _Version(serial, app)
        await _start(version)
        self._opened[serial] = version

    async def discard(self, serial: int) -> None:
        """Close a version that was opened and never current."""
        version = self._opened.pop(serial, None)
        if version is not None:
            await version.resources.aclose()

    def switch(self, serial: int) -> None:
        """Make an opened version the current one; the other ends when its last request has."""
        old, self._current = self._current, self._opened.pop(serial)
        if old.num_requests == 0:
            old.is_idle.set()
        self._replaced[old.serial] = old
        task = asyncio.create_task(self._retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retire(self, version: _Version) -> None:
        await version.is_idle.wait()
        await version.resources.aclose()
        del self._replaced[version.serial]


async def _start(version: _Version) -> None:
    await version.resources.enter_async_context(version.app.lifespan_context(version.app))
