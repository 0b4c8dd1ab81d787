"""A request sees one version from start to end, and a version's resources live as long as its requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from gateway.web.versioned_app import VersionedApp
from tests.gateway.processes.test_managed_process import until


class Versions:
    """Routers that note what they do in `log`; their requests wait for `may_end`."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.may_end = asyncio.Event()

    def router(self, name: str) -> Router:
        @asynccontextmanager
        async def lifespan(_: Router) -> AsyncIterator[None]:
            self.log.append(f"{name} opens")
            yield
            self.log.append(f"{name} closes")

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self.log.append(f"{name} begins")
            await self.may_end.wait()
            self.log.append(f"{name} ends")

        return Router(default=answer, lifespan=lifespan)


async def call(app: VersionedApp) -> None:
    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        return

    await app({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)


async def test_requests_keep_their_version_and_its_resources() -> None:
    versions = Versions()
    app = VersionedApp(1, versions.router("one"))
    async with app.lifespan_context(app):
        first = asyncio.create_task(call(app))
        await until(lambda: "one begins" in versions.log)
        await app.open(2, versions.router("two"))
        assert (app.serial, app.oldest_serial) == (1, 1)
        app.switch(2)
        second = asyncio.create_task(call(app))
        await until(lambda: "two begins" in versions.log)
        assert (app.serial, app.oldest_serial) == (2, 1)
        assert "one closes" not in versions.log
        versions.may_end.set()
        await asyncio.gather(first, second)
        await until(lambda: app.oldest_serial == 2)
        assert versions.log == [
            *("one opens", "one begins", "two opens", "two begins"),
            *("one ends", "two ends", "one closes"),
        ]
    assert versions.log[-1] == "two closes"


async def test_an_idle_version_ends_at_once() -> None:
    versions = Versions()
    app = VersionedApp(1, versions.router("one"))
    async with app.lifespan_context(app):
        await app.open(2, versions.router("two"))
        app.switch(2)
        await until(lambda: versions.log == ["one opens", "two opens", "one closes"])


async def test_a_discarded_version_leaves_the_current_one() -> None:
    versions = Versions()
    app = VersionedApp(1, versions.router("one"))
    async with app.lifespan_context(app):
        await app.open(2, versions.router("two"))
        await app.discard(2)
        await app.discard(3)  # never opened
        assert app.serial == 1 and versions.log == ["one opens", "two opens", "two closes"]


async def test_the_end_closes_all() -> None:
    versions = Versions()
    app = VersionedApp(1, versions.router("one"))
    async with app.lifespan_context(app):
        running = asyncio.create_task(call(app))
        await until(lambda: "one begins" in versions.log)
        await app.open(2, versions.router("two"))
        app.switch(2)
        await app.open(3, versions.router("three"))
    closed = sorted(line for line in versions.log if line.endswith("closes"))
    assert closed == ["one closes", "three closes", "two closes"]
    versions.may_end.set()
    await running
