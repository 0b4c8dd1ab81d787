"""choose_model: resolve the requested name, of a model or a route, to one model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.pipeline.exchange import Exchange
from gateway.pipeline.models import ModelTable
from gateway.telemetry import spans


def choose_model(models: ModelTable) -> Callable[[Exchange], Awaitable[None]]:
    """A stage that fills `exchange.model`; raises NotFound."""

    async def stage(exchange: Exchange) -> None:
        with exchange.telemetry.stage(spans.STAGE_CHOOSE_MODEL):
            name = exchange.request.model
            exchange.model = models.resolve(name)
        if exchange.model.name != name:
            exchange.telemetry.annotate({spans.ROUTE: name})

    return stage
