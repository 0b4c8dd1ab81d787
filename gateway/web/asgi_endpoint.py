"""One way in and one way out: every call is recorded, and every error becomes an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from starlette.routing import Route, Router
from starlette.types import Lifespan, Receive, Scope, Send

from gateway.errors import ApiError, MethodNotAllowed, NotFound, Unavailable, to_api_error
from gateway.telemetry import spans
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.http_call import Call

logger = logging.getLogger("penstock.gateway")

FAREWELL_S = 1.0
"""How long a call that is cut off at shutdown may take to say so."""

Answer = Callable[[Call], Awaitable[None]]


class Resource(Protocol):
    """What is opened at start and closed at the end: engine clients, connection pools."""

    async def start(self) -> None:
        """Open; returns soon, whatever the other side does."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


class Door:
    """Makes the ASGI endpoints that Starlette's router leads to."""

    def __init__(self, telemetry: Telemetry, headers: Mapping[str, str] | None = None) -> None:
        """`headers` go out with every answer."""
        self._telemetry = telemetry
        self._unrecorded = Telemetry(OFF, Metrics(()))  # nobody reads it
        self._headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]

    def route(self, method: str, path: str, label: str, answer: Answer) -> Route:
        """A path in Starlette's notation and its one method (GET also takes HEAD).

        `label` is the endpoint's name in metrics; "" leaves it out of metrics and traces.
        """
        template = path.replace(":path}", "}")

        async def check_method(call: Call) -> None:
            asked = call.scope["method"]
            if asked != method and (asked, method) != ("HEAD", "GET"):
                raise MethodNotAllowed(
                    f"{asked[:16]} is not allowed on {template}: use {method}.", headers={"allow": method}
                )
            await answer(call)

        recorder = self._telemetry if label else self._unrecorded
        return Route(path, Endpoint(recorder, label or "other", template, check_method, self._headers))

    def router(self, routes: Sequence[Route], resources: Sequence[Resource] = ()) -> Router:
        """The ASGI application; `resources` are started in order and closed in reverse."""
        unknown = Endpoint(self._telemetry, "other", "", _unknown_path, self._headers)
        return Router(routes, redirect_slashes=False, default=unknown, lifespan=_lifespan(resources))


class Endpoint:
    """One endpoint as an ASGI application. `template` is the path as spans show it: no caller's words."""

    def __init__(
        self,
        telemetry: Telemetry,
        label: str,
        template: str,
        answer: Answer,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        self._telemetry = telemetry
        self._label = label
        self._template = template
        self._answer = answer
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call, whatever happens."""
        telemetry = self._telemetry.begin(self._label, scope["method"], self._template, scope["headers"])
        call = Call(scope, receive, send, telemetry, self._headers)
        telemetry.annotate({spans.REQUEST_ID: call.request_id})
        error: ApiError | None = None
        try:
            await self._answer(call)
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


def _lifespan(resources: Sequence[Resource]) -> Lifespan[Router]:
    @contextlib.asynccontextmanager
    async def live(_: Router) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as opened:
            for resource in resources:
                await resource.start()
                opened.push_async_callback(resource.close)
            yield

    return live


async def _unknown_path(call: Call) -> None:
    path = call.scope["path"]
    shown = path if len(path) <= 128 else path[:128] + "…"
    raise NotFound(f"Unknown request URL: {call.scope['method']} {shown}.", code="unknown_url")


def log_failure(failure: BaseException, request_id: str) -> None:
    """An unexpected exception by type and place. Not its message: that may quote a prompt."""
    places = "".join(traceback.format_tb(failure.__traceback__))
    logger.error("request %s failed with %s at\n%s", request_id, type(failure).__name__, places)
