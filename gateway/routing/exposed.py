"""Headers that tell a client which model answers and why, where the policies say `routing.expose`."""

from __future__ import annotations

from gateway.exchange.exchange import Exchange
from gateway.telemetry import spans

ROUTE_HEADER = "x-penstock-route"
MODEL_HEADER = "x-penstock-model"
REASON_HEADER = "x-penstock-reason"
ATTEMPTS_HEADER = "x-penstock-attempts"
EXPOSED_HEADERS = (ROUTE_HEADER, MODEL_HEADER, REASON_HEADER, ATTEMPTS_HEADER)
"""Headers of answers and errors."""


def show_model(exchange: Exchange) -> None:
    """Tell the span, and the client where choose_model has told it, the model of now and why."""
    exchange.asked.telemetry.annotate({spans.REASON: exchange.reason})
    if MODEL_HEADER in exchange.response_headers and exchange.model is not None:
        exchange.response_headers[MODEL_HEADER] = exchange.model.name
        exchange.response_headers[REASON_HEADER] = exchange.reason


def show_attempts(exchange: Exchange) -> None:
    """Tell them how many calls of models there were: the last one answered, or its error is sent."""
    telemetry = exchange.asked.telemetry
    if not telemetry.num_attempts:
        return
    count = str(telemetry.num_attempts)
    telemetry.annotate({spans.ATTEMPTS: count})
    if MODEL_HEADER in exchange.response_headers:
        exchange.response_headers[ATTEMPTS_HEADER] = count
        exchange.usage.shows_machine_seconds = True
