"""What calls cost."""

from __future__ import annotations

import pytest
from msgspec import structs

from gateway.accounting.ledger import Ledger, cost_usd
from gateway.answer import Usage
from policies.prices import Price

PRICE = Price(input_usd_per_million_tokens=2.0, output_usd_per_million_tokens=10.0)


def test_cost() -> None:
    assert cost_usd(PRICE, Usage(1_000_000, 200_000)) == pytest.approx(4.0)
    assert cost_usd(None, Usage(1_000_000, 200_000)) == 0.0


def test_cost_beside_tokens() -> None:
    price = structs.replace(PRICE, request_usd=0.5, machine_second_usd=3.0, batch_factor=0.25)
    usage = Usage(1_000_000, 200_000, machine_seconds=2.0)
    assert cost_usd(price, usage) == pytest.approx(4.0 + 0.5 + 6.0)
    assert cost_usd(price, usage, is_batch=True) == pytest.approx(1.0 + 0.5 + 6.0)
    assert cost_usd(price, Usage()) == 0.0  # nothing was asked


def test_tenants_and_models_are_apart() -> None:
    ledger = Ledger()
    ledger.spend("a", "small", 1.0)
    ledger.spend("b", "small", 2.0)
    ledger.spend("b", "large", 4.0)
    assert (ledger.tenant_usd("a"), ledger.tenant_usd("b")) == (1.0, 6.0)
    assert (ledger.model_usd("small"), ledger.models_usd(["small", "large", "none"])) == (3.0, 7.0)
    ledger.use("a", requests=1, tokens=8)
    assert (ledger.recent("a", "requests"), ledger.recent("a", "tokens")) == (1, 8)
