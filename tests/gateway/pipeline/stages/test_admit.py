"""Tiers and limits of tenants."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.accounting.accounts import Settled
from gateway.accounting.admission import Admission
from gateway.accounting.counters import Counters
from gateway.accounting.ledger import Ledger
from gateway.auth import Principal
from gateway.errors import ApiError
from gateway.exchange.exchange import Exchange
from gateway.pipeline.stages.admit import Admit
from gateway.pipeline.stages.read_request import ReadRequest
from policies.document import Policies
from policies.tenants import Limits, Tenant, Tier
from tests.gateway.pipeline.exchanges import BODIES, exchange_with


class Door:
    """The stage, and the time."""

    def __init__(self, tier: Tier, **more: Any) -> None:  # noqa: ANN401
        self.ledger = Ledger(Counters(now_s=lambda: 1_000_000_020.0))
        self.stage = self.reloaded(tier, **more)

    def reloaded(self, tier: Tier, **more: Any) -> Admit:  # noqa: ANN401
        return Admit(Admission(Policies(tiers={"default": tier}, **more), self.ledger))

    async def ask(self, model: str = "auto", tenant: str = "t", n: int | None = None) -> Exchange:
        exchange = exchange_with({**BODIES["chat"], "model": model, "n": n})
        await ReadRequest().enter(exchange)
        exchange.principal = Principal(tenant, "")
        await self.stage.enter(exchange)
        return exchange

    def charge(self, tokens: int = 0, usd: float = 0.0) -> None:
        """A request has used this much."""
        for line in self.stage._admission._own["t"]:
            amount = {"tokens": tokens, "usd": round(usd * 1e9)}.get(line.kind, 0)
            self.ledger.accounts.settle([Settled(line, 0, amount)])

    async def refusal(self, **fields: Any) -> ApiError:  # noqa: ANN401
        with pytest.raises(ApiError) as caught:
            await self.ask(**fields)
        return caught.value


async def test_only_the_tiers_models() -> None:
    door = Door(Tier(models=["auto", "small"]))
    await door.ask("small")
    error = await door.refusal(model="large")
    assert (error.status, error.code, error.param) == (403, "model_not_allowed", "model")
    assert error.message == "The model 'large' is not for 't', which may ask for: auto, small."


async def test_requests_per_minute_with_openais_headers() -> None:
    door = Door(Tier(limits=Limits(requests_per_minute=2)))
    headers = (await door.ask()).response_headers
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    await door.ask()
    error = await door.refusal()
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert error.message.startswith("The limit of 2 requests per minute is reached. Try again in ")
    assert error.headers["retry-after"] == "90"  # half of the next minute: then one of the two has slid out
    await door.ask(tenant="another")


async def test_tokens_per_minute() -> None:
    door = Door(Tier(limits=Limits(tokens_per_minute=100)))
    await door.ask()
    door.charge(tokens=100)
    assert "100 tokens per minute" in (await door.refusal()).message


async def test_requests_at_the_same_time() -> None:
    door = Door(Tier(limits=Limits(concurrent_requests=1)))
    first = await door.ask()
    error = await door.refusal()
    assert "1 requests at the same time" in error.message and error.headers["retry-after"] == "1"
    door.stage.settle(first)
    await door.ask()


async def test_a_refused_request_is_not_released() -> None:
    door = Door(Tier(limits=Limits(concurrent_requests=1)))
    await door.ask()
    refused = exchange_with(BODIES["chat"])
    refused.principal = Principal("t", "")
    door.stage.settle(refused)
    await door.refusal()


async def test_a_budget_per_day() -> None:
    door = Door(Tier(limits=Limits(usd_per_day=2.0)))
    await door.ask()
    door.charge(usd=1.99)
    await door.ask()
    door.charge(usd=0.02)
    error = await door.refusal()
    assert (error.code, error.status) == ("budget_exceeded", 429)


async def test_a_tenants_own_rules_come_first() -> None:
    tenants = {"t": Tenant(models=["large"], limits=Limits(requests_per_minute=1))}
    door = Door(
        Tier(models=["small"], limits=Limits(requests_per_minute=9, usd_per_day=1.0)), tenants=tenants
    )
    await door.ask("large")
    assert "1 requests per minute" in (await door.refusal(model="large")).message
    door.charge(usd=5.0)
    assert (await door.refusal(model="large")).code == "budget_exceeded"


async def test_every_answer_counts_as_a_concurrent_request() -> None:
    door = Door(Tier(limits=Limits(concurrent_requests=4)))
    first = await door.ask(n=3)
    error = await door.refusal(n=2)
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    await door.ask()
    door.stage.settle(first)
    await door.ask(n=3)
    error = await door.refusal(n=5)
    assert (error.status, error.param) == (400, "n") and "5 answers" in error.message


async def test_a_limit_holds_over_a_reload_of_the_policies() -> None:
    door = Door(Tier(limits=Limits(concurrent_requests=2)))
    running = [await door.ask(), await door.ask()]
    before, door.stage = door.stage, door.reloaded(Tier(limits=Limits(concurrent_requests=2)))
    await door.refusal()
    before.settle(running[0])
    await door.ask()
    await door.refusal()
