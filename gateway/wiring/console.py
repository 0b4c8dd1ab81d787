"""The routes of the console: its page, and the endpoints under /admin that only it and `penstock top` ask."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.routing import Route

from backend.server.engine_client import EngineClient
from cache.semantic_cache import SemanticCache
from gateway.admin.access import AdminAccess
from gateway.admin.live import LiveEndpoint, LiveView
from gateway.admin.marks import MarksEndpoint
from gateway.admin.panels import Panels
from gateway.admin.requests import PATH as REQUESTS
from gateway.admin.requests import RequestsEndpoint
from gateway.admin.traffic import TrafficEndpoint
from gateway.console import pages
from gateway.endpoints.spec import EndpointParts
from gateway.exchange.model_table import ModelTable
from gateway.web.asgi_endpoint import RouteBuilder
from gateway.wiring.worker_parts import WorkerParts
from policies.document import Policies


def console_routes(endpoints: RouteBuilder, policies: Policies) -> list[Route]:
    """None where the policies say `console: off`."""
    if not policies.console:
        return []
    return [
        endpoints.route("GET", "/console", "", pages.redirect),
        endpoints.route("GET", "/console/", "", pages.show_console),
        endpoints.route("GET", "/console/{name}", "", pages.show_file),
        endpoints.route("GET", "/docs", "", pages.show_docs),
    ]


def data_routes(
    endpoints: RouteBuilder,
    access: AdminAccess,
    shared: EndpointParts,
    policies: Policies,
    parts: WorkerParts,
    models: ModelTable,
    engines: Mapping[str, EngineClient],
    cache: SemanticCache,
) -> list[Route]:
    """What runs now, and what it came to."""
    if not policies.console:
        return []
    metrics = parts.metrics
    view = LiveView(policies.version, models, engines, parts.statuses, metrics, parts.peers)
    ledger = parts.routing.ledger
    panels = Panels(shared.keys, shared.pipeline.admission, ledger, metrics, policies, cache)
    marks = MarksEndpoint(access, policies.guardrails, shared.max_body_bytes)
    return [
        endpoints.route("POST", "/admin/marks", "", marks.mark),
        endpoints.route("GET", "/admin/live", "", LiveEndpoint(access, view, parts.live).show),
        endpoints.route(
            "GET", "/admin/traffic", "", TrafficEndpoint(access, parts.usage, metrics, panels).show
        ),
    ]


def request_routes(
    endpoints: RouteBuilder, access: AdminAccess, policies: Policies, parts: WorkerParts
) -> list[Route]:
    """The last requests, and those that run."""
    if not policies.console:
        return []
    requests = RequestsEndpoint(access, parts.peers)
    # An id may have slashes, and end as the path of `cancel` does.
    cancelling = {"POST": requests.cancel, "GET": requests.show}
    return [
        endpoints.route("GET", REQUESTS, "other", requests.list),
        endpoints.route("GET", f"{REQUESTS}/in-flight", "other", requests.in_flight),
        endpoints.methods(f"{REQUESTS}/{{id:path}}/cancel", "other", cancelling),
        endpoints.route("GET", f"{REQUESTS}/{{id:path}}", "other", requests.show),
    ]
