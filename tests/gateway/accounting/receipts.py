"""Receipts of made-up requests."""

from __future__ import annotations

import msgspec

from gateway.accounting.receipt import Receipt

NOW_S = 1_795_600_000.0  # 2026-11-25T09:46:40Z
_ANSWERED = Receipt(
    request_id="req_1",
    trace_id="",
    ended_s=NOW_S,
    duration_s=1.0,
    first_token_s=0.1,
    endpoint="chat",
    tenant="a",
    key_id="0a0a0a0a",
    user="",
    model="m",
    target="",
    route="",
    status=200,
    error_type="",
    input_tokens=3,
    output_tokens=4,
    cached_tokens=1,
    cache_write_tokens=2,
    reasoning_tokens=1,
    is_estimated=False,
    machine_seconds=0.5,
    cost_usd=0.25,
    cache="",
    guardrails="",
    failed_models=(),
    num_attempts=1,
    policy_version="v1",
)


def receipt_with(**fields: object) -> Receipt:
    """A receipt of an answered request, with other fields."""
    return msgspec.structs.replace(_ANSWERED, **fields)  # type: ignore[arg-type]
