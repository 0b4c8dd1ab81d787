"""The routes of the console: its page, and the endpoints under /admin that only it and `penstock top` ask."""

from __future__ import annotations

from starlette.routing import Route

from gateway.console import pages
from gateway.web.asgi_endpoint import RouteBuilder
from policies.document import Policies


def console_routes(endpoints: RouteBuilder, policies: Policies) -> list[Route]:
    """None where the policies say `console: off`."""
    if not policies.console:
        return []
    return [
        endpoints.route("GET", "/console", "", pages.redirect),
        endpoints.route("GET", "/console/", "", pages.show_console),
        endpoints.route("GET", "/console/{name}", "", pages.show_file),
    ]
