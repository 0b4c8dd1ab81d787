"""screen_request: the model's guardrails on what is asked; the cache never sees what they mask."""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.screening import Screening
from gateway.pipeline.stages.read_request import KINDS
from gateway.requests.parse import typed
from gateway.telemetry import spans


async def screen_request(exchange: Exchange) -> None:
    """Fill `exchange.screening`; change `body` and `request`. Raises InvalidRequest (`content_filter`)."""
    model = exchange.model
    assert model is not None
    if model.guardrails is None:
        return
    with exchange.telemetry.stage(spans.STAGE_SCREEN):
        screening = exchange.screening = Screening(model.guardrails)
        if screening.changes_text and getattr(exchange.request, "logprobs", None):
            raise InvalidRequest(
                f"'logprobs' would show what the guardrails of {model.name!r} mask: leave it out.",
                param="logprobs",
            )
        try:
            body = screening.request_body(exchange.body)
        finally:
            exchange.telemetry.annotate({spans.GUARDRAILS: screening.verdicts})
    if body != exchange.body:
        exchange.body = body
        exchange.request = typed(body, KINDS[exchange.endpoint])
