from __future__ import annotations

from decimal import Decimal

from gateway.evaluation.price import TokenPrice


def test_cost_is_exact() -> None:
    price = TokenPrice(Decimal("0.000000019"), Decimal("0.000000076"))
    assert price.of(3, 10) == Decimal("0.000000817")
