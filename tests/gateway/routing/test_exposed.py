from __future__ import annotations

from gateway.routing.exposed import MODEL_HEADER, REASON_HEADER, show_model
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
