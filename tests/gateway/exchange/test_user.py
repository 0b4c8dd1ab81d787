"""End users are told apart, within a tenant, without their names."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.auth import Principal
from gateway.exchange.user import user_hash
from gateway.pipeline.stages.read_request import ReadRequest
from tests.gateway.pipeline.exchanges import BODIES, exchange_of, exchange_with


async def hashed(tenant: str = "t", endpoint: str = "chat", **fields: Any) -> str:  # noqa: ANN401
    exchange = exchange_with({**BODIES[endpoint], **fields}, endpoint)
    exchange.principal = Principal(tenant, "")
    await ReadRequest().enter(exchange)
    return user_hash(exchange)


@pytest.mark.parametrize("endpoint", ["chat", "completions", "embeddings"])
async def test_of_every_endpoint(endpoint: str) -> None:
    found = await hashed(endpoint=endpoint, user="jo@example.com")
    assert len(found) == 64 and "jo" not in found
    assert found == await hashed(user="jo@example.com") != await hashed("another", user="jo@example.com")
    assert await hashed(endpoint=endpoint) == ""


async def test_the_safety_identifier_comes_first() -> None:
    assert await hashed(safety_identifier="a", user="b") == await hashed(user="a")


async def test_a_body_that_was_not_read() -> None:
    assert user_hash(exchange_of()) == ""
