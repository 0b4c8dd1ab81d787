"""The endpoints that call a model: how rules, metrics and traces name them, and where clients find them."""

from __future__ import annotations

from typing import NamedTuple


class EndpointName(NamedTuple):
    """What is public of one endpoint; `gateway.endpoints.specs` has the rest of its record."""

    paths: tuple[str, ...]  # the first is its usual one, also in batches
    operation: str  # `gen_ai.operation.name` of its spans
    gives_way: bool = False  # a passthrough rule may take its path


ENDPOINTS: dict[str, EndpointName] = {
    "chat": EndpointName(("/v1/chat/completions",), "chat"),
    "responses": EndpointName(("/v1/responses",), "chat"),
    "messages": EndpointName(("/v1/messages",), "chat"),
    "completions": EndpointName(("/v1/completions",), "text_completion"),
    "embeddings": EndpointName(("/v1/embeddings",), "embeddings"),
    "rerank": EndpointName(("/v1/rerank", "/v2/rerank", "/rerank"), "rerank", gives_way=True),
}
"""By name, which is `request.endpoint` in conditions and the label `endpoint` of metrics.

The order is that of the routes: every route before one costs half a microsecond.
"""


def own_prefixes() -> tuple[str, ...]:
    """The first two steps of every path under /v1 that passthrough may not take."""
    paths = (path for each in ENDPOINTS.values() if not each.gives_way for path in each.paths)
    return tuple("/".join(path.split("/")[:3]) for path in paths if path.startswith("/v1/"))
