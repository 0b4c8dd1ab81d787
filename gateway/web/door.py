"""The ASGI application: lifespan, routing, and one way out for every error."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError, MethodNotAllowed, NotFound, Unavailable, to_api_error
from gateway.telemetry import spans
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.call import Call

logger = logging.getLogger("penstock.gateway")

FAREWELL_S = 1.0
"""How long a call that is cut off at shutdown may take to say so."""


class Resource(Protocol):
    """What is opened at start and closed at the end: engine clients, connection pools."""

    async def start(self) -> None:
        """Open; returns soon, whatever the other side does."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


Endpoint = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its one method, and who answers. A path that ends in "/" also takes everything below it.

    `label` is the endpoint's name in metrics; "" leaves it out of metrics and traces.
    """

    method: str
    path: str
    label: str
    endpoint: Endpoint

    @property
    def template(self) -> str:
        """The path as spans show it: never with the caller's words in it."""
        return self.path + "{id}" if self.path.endswith("/") else self.path


class Door:
    """Every call comes in here and leaves here, answered."""

    def __init__(
        self,
        routes: Sequence[Route],
        telemetry: Telemetry,
        resources: Sequence[Resource] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` go out with every answer; `resources` are started in order and closed in reverse."""
        self._exact = {route.path: route for route in routes if not route.path.endswith("/")}
        self._below = [route for route in routes if route.path.endswith("/")]
        self._telemetry = telemetry
        self._unrecorded = Telemetry(OFF, Metrics(()))  # nobody reads it
        self.resources = list(resources)
        self._headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000, "reason": "No WebSocket endpoints here."})

    def _route(self, path: str) -> Route | None:
        route = self._exact.get(path)
        if route is None:
            for each in self._below:
                if path.startswith(each.path) and len(path) > len(each.path):
                    return each
        return route

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._route(scope["path"])
        label, template = (route.label, route.template) if route is not None else ("other", "")
        recorder = self._telemetry if label else self._unrecorded
        telemetry = recorder.begin(label or "other", scope["method"], template, scope["headers"])
        call = Call(scope, receive, send, telemetry, self._headers)
        telemetry.annotate({spans.REQUEST_ID: call.request_id})
        error: ApiError | None = None
        try:
            await _endpoint_of(route, scope)(call)
        except asyncio.CancelledError:
            error = Unavailable("The gateway is shutting down. Send the request again.")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await call.fail(error)
            raise
        except Exception as failure:  # noqa: BLE001 - the one place where any error becomes an answer
            error = to_api_error(failure)
            if error is not failure:
                log_failure(failure, call.request_id)
            await call.fail(error)
        finally:
            telemetry.end(call.status, "" if error is None else type(error).__name__)

    async def _live(self, receive: Receive, send: Send) -> None:
        opened: list[Resource] = []
        await receive()
        try:
            for resource in self.resources:
                await resource.start()
                opened.append(resource)
        except Exception as failure:  # noqa: BLE001 - the server wants the reason as a message
            await self._close(opened)
            await send({"type": "lifespan.startup.failed", "message": str(failure)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._close(opened)
        await send({"type": "lifespan.shutdown.complete"})

    @staticmethod
    async def _close(opened: list[Resource]) -> None:
        for resource in reversed(opened):
            await resource.close()


def _endpoint_of(route: Route | None, scope: Scope) -> Endpoint:
    if route is None:
        raise NotFound(f"Unknown request URL: {scope['method']} {_shown(scope['path'])}.", code="unknown_url")
    if scope["method"] != route.method:
        raise MethodNotAllowed(
            f"{scope['method'][:16]} is not allowed on {route.template}: use {route.method}.",
            headers={"allow": route.method},
        )
    return route.endpoint


def _shown(path: str) -> str:
    return path if len(path) <= 128 else path[:128] + "…"


def log_failure(failure: BaseException, request_id: str) -> None:
    """An unexpected exception by type and place. Not its message: that may quote a prompt."""
    places = "".join(traceback.format_tb(failure.__traceback__))
    logger.error("request %s failed with %s at\n%s", request_id, type(failure).__name__, places)
