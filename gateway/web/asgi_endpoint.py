"""Wraps handlers as ASGI endpoints: every request is recorded, and every exception becomes a response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from starlette.middleware import Middleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from gateway.auth import InternalCaller
from gateway.errors import ApiError, MethodNotAllowed, Unavailable, to_api_error
from gateway.telemetry import spans
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.error_format import OPENAI_ERRORS, ApiFormat
from gateway.web.http_call import INTERNAL_CALLER, HttpCall
from gateway.web.unknown_path import format_for, unknown_path

logger = logging.getLogger("penstock.gateway")

REFUSAL = "penstock.refusal"
"""Key in a scope of the ApiError with which the server refuses a head that it could not read."""

SHUTDOWN_ERROR_TIMEOUT_S = 1.0
"""How long a handler that is cancelled at shutdown may take to send its error."""

Handler = Callable[[HttpCall], Awaitable[None]]


class Resource(Protocol):
    """What the application opens at start-up and closes at shutdown: engine clients, connection pools."""

    async def start(self) -> None:
        """Open; must not wait for the peer."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


class RouteBuilder:
    """Builds Starlette routes with telemetry, error handling and common response headers."""

    def __init__(self, telemetry: Telemetry, headers: Mapping[str, str] | None = None) -> None:
        """`headers` are sent with every response."""
        self._telemetry = telemetry
        self._unrecorded = Telemetry(OFF, Metrics(()))  # never exported
        self._headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]

    def route(
        self,
        method: str,
        path: str,
        label: str,
        handler: Handler,
        error_format: ApiFormat = OPENAI_ERRORS,
    ) -> Route:
        """A path in Starlette's notation and its one method.

        `label` is the endpoint's name in metrics; "" leaves it out of metrics and traces.
        """
        return self.methods(path, label, {method: handler}, error_format)

    def methods(
        self,
        path: str,
        label: str,
        handlers: Mapping[str, Handler],
        error_format: ApiFormat = OPENAI_ERRORS,
        *,
        labelled: str = "",
    ) -> Route:
        """A path with a handler per method (GET also takes HEAD); otherwise as `route`.

        `labelled`: the one method that the label is for; others count as "other".
        """
        template = path.replace(":path}", "}")

        def check_method(call: HttpCall) -> Awaitable[None]:
            asked = call.scope["method"]
            handler = handlers.get("GET" if asked == "HEAD" else asked)
            if handler is None:
                allowed = ", ".join(handlers)
                raise MethodNotAllowed(
                    f"{asked[:16]} is not allowed on {template}: use {allowed}.", headers={"allow": allowed}
                )
            return handler(call)

        recorder = self._telemetry if label else self._unrecorded
        endpoint = AsgiEndpoint(
            recorder, label or "other", template, check_method, self._headers, error_format, labelled=labelled
        )
        endpoint.handlers = handlers
        return Route(path, endpoint)

    def router(
        self,
        routes: Sequence[Route],
        resources: Sequence[Resource] = (),
        middleware: Sequence[Middleware] = (),
    ) -> Router:
        """The ASGI application; `resources` are started in order and closed in reverse."""

        endpoints = [(route.path, route.endpoint) for route in routes]
        formats = {path: each.error_format for path, each in endpoints if isinstance(each, AsgiEndpoint)}

        async def refuse(call: HttpCall) -> None:
            refusal: ApiError | None = call.scope.get(REFUSAL)
            if refusal is not None:
                raise refusal
            error_format = format_for(call.scope, formats)
            call.error_format = error_format
            if name := error_format.request_id_header:
                call.error_headers = {name.decode(): call.request_id}
            raise unknown_path(call.scope, routes, error_format)

        unknown = AsgiEndpoint(self._telemetry, "other", "", refuse, self._headers)
        router = _DirectRouter(
            routes,
            redirect_slashes=False,
            default=unknown,
            lifespan=_lifespan(resources),
            middleware=middleware,
        )
        firsts = [next(each for each in routes if each.path_regex.match(route.path)) for route in routes]
        if not middleware:  # which must see every request
            router.direct = {route.path: route.app for route in firsts if not route.param_convertors}
        return router


class _DirectRouter(Router):
    """Starlette's router; paths in `direct` skip its search, and two of its coroutines.

    Each await between the server and a stream is paid again with every event.
    """

    direct: Mapping[str, ASGIApp] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or run the lifespan."""
        await self.direct.get(scope.get("path", ""), super().__call__)(scope, receive, send)


class AsgiEndpoint:
    """One handler as an ASGI application. Spans show `template`, never the caller's path."""

    handlers: Mapping[str, Handler] = MappingProxyType({})
    """By method, for `/openapi.json`."""

    def __init__(
        self,
        telemetry: Telemetry,
        label: str,
        template: str,
        handler: Handler,
        headers: list[tuple[bytes, bytes]],
        error_format: ApiFormat = OPENAI_ERRORS,
        *,
        labelled: str = "",
    ) -> None:
        """`labelled`: the one method that the label is for; "": all."""
        self._labelled = labelled
        self._telemetry = telemetry
        self.error_format = error_format
        self._label = label
        self._template = template
        self._handler = handler
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with the handler's response or with an error."""
        caller: InternalCaller | None = scope.get(INTERNAL_CALLER)
        method = scope["method"]
        telemetry = self._telemetry.begin(
            self._label if self._labelled in ("", method) else "other",
            method,
            self._template,
            scope["headers"],
            metrics_label=caller.endpoint_label if caller is not None else "",
        )
        call = HttpCall(scope, receive, send, telemetry, self._headers, self.error_format)
        telemetry.annotate({spans.REQUEST_ID: call.request_id})
        error: ApiError | None = None
        try:
            await self._handler(call)
        except asyncio.CancelledError:
            error = Unavailable("The gateway is shutting down. Send the request again.")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHUTDOWN_ERROR_TIMEOUT_S):
                    await call.fail(error)
            raise
        except Exception as failure:  # noqa: BLE001 - the one place where any exception becomes a response
            error = to_api_error(failure)
            if error is not failure:
                log_failure(failure, call.request_id)
            await call.fail(error)
        finally:
            telemetry.end(call.status, "" if error is None else type(error).__name__)
            error = None  # its traceback refers to this frame: memory would wait for the garbage collector


def _lifespan(resources: Sequence[Resource]) -> Lifespan[Router]:
    @contextlib.asynccontextmanager
    async def lifespan(_: Router) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as opened:
            for resource in resources:
                await resource.start()
                opened.push_async_callback(resource.close)
            yield

    return lifespan


def log_failure(failure: BaseException, request_id: str) -> None:
    """Log an unexpected exception's type and traceback. Not its message: that may quote a prompt."""
    frames = "".join(traceback.format_tb(failure.__traceback__))
    fields = {"fields": {"request_id": request_id}}
    logger.error("request %s failed with %s at\n%s", request_id, type(failure).__name__, frames, extra=fields)
