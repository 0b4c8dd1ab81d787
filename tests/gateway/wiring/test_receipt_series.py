"""A receipt's amounts come in the order of the series."""

from __future__ import annotations

from functools import partial

import msgspec

from gateway.accounting.receipt import Receipt
from gateway.telemetry.metrics import Metrics
from gateway.wiring.receipt_series import receipt_series
from tests.gateway.telemetry.test_metrics import sample

FIELDS = {
    **{"tenant": "team", "route": "auto", "status": 502, "cost_usd": 0.5, "is_estimated": True},
    **{"input_tokens": 7, "output_tokens": 3, "cached_tokens": 2, "reasoning_tokens": 1},
    "failed_models": ("a", "b"),
    "machine_seconds": 1.5,
}


def test_amounts() -> None:
    empty = {
        each.name: each.type() for each in msgspec.structs.fields(Receipt) if each.type in (str, int, float)
    }
    metrics = Metrics(["m"])
    receipt_series(metrics)(Receipt(**empty | FIELDS | {"first_token_s": None}))  # type: ignore[arg-type]
    found = partial(sample, metrics, tenant="team")
    assert found("penstock_tenant_requests_total", status="5xx") == 1
    kinds = {"input": 7, "output": 3, "cached": 2, "reasoning": 1, "estimated": 10}
    assert {kind: found("penstock_tenant_tokens_total", kind=kind) for kind in kinds} == kinds
    assert found("penstock_tenant_machine_seconds_total") == 1.5
    assert (found("penstock_tenant_fallbacks_total"), found("penstock_tenant_cost_usd_total")) == (2, 0.5)
