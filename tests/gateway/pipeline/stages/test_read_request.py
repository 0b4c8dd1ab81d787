from __future__ import annotations

import pytest

from gateway.exchange.exchange import Endpoint
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from tests.gateway.pipeline.exchanges import BODIES, exchange_of


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [("chat", ChatRequest), ("completions", CompletionRequest), ("embeddings", EmbeddingRequest)],
)
async def test_fills_body_and_request(endpoint: Endpoint, kind: type) -> None:
    exchange = exchange_of(endpoint)
    await ReadRequest().enter(exchange)
    assert exchange.body == BODIES[endpoint] and type(exchange.request) is kind
