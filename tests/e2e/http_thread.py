"""An aiohttp application in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import threading

from aiohttp import web


class HttpThread:
    """Listens on an ephemeral port until closed. Set everything that handlers need before `__init__`."""

    base_url: str  # ends in /v1
    port = 0  # 0: any that is free

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10.0)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Stop listening."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    def _run(self) -> None:
        app = web.Application()
        self.add_routes(app.router)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        self._loop.run_until_complete(site.start())
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()
