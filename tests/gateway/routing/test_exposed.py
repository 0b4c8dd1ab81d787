from __future__ import annotations

from gateway.answer import Embedded, Usage
from gateway.exchange.shape import own_counts
from gateway.routing.exposed import (
    ATTEMPTS_HEADER,
    MODEL_HEADER,
    REASON_HEADER,
    show_attempts,
    show_model,
)
from tests.gateway.pipeline.exchanges import exchange_of, models, routed_to


async def test_only_a_client_that_was_told_a_model_is_told_another() -> None:
    for headers, expected in (
        ({}, {}),
        ({MODEL_HEADER: "old"}, {MODEL_HEADER: "m", REASON_HEADER: "why"}),
    ):
        exchange = exchange_of()
        exchange.route(routed_to(models().resolve("m"), reason="why"))
        exchange.response_headers = headers
        show_model(exchange)
        assert exchange.response_headers == expected


async def test_the_number_of_attempts_is_shown_where_the_model_is() -> None:
    exchange = exchange_of()
    show_attempts(exchange)
    exchange.asked.telemetry.num_attempts = 2
    show_attempts(exchange)
    assert exchange.response_headers == {}
    exchange.response_headers = {MODEL_HEADER: "m"}
    show_attempts(exchange)
    assert exchange.response_headers[ATTEMPTS_HEADER] == "2"


async def test_machine_seconds_are_shown_where_the_model_is() -> None:
    for headers, is_shown in (({}, False), ({MODEL_HEADER: "m"}, True)):
        exchange = exchange_of()
        exchange.asked.telemetry.num_attempts = 1
        exchange.response_headers = headers
        exchange.answer = Embedded([], Usage(machine_seconds=1.5))
        show_attempts(exchange)
        expected = {"x_penstock": {"machine_seconds": 1.5}} if is_shown else {}
        assert own_counts(exchange.usage) == expected
        assert own_counts(Usage(shows_machine_seconds=True)) == {}  # an upstream's
