"""Counts each receipt in the series of its tenant and route."""

from __future__ import annotations

from functools import partial

from gateway.accounting.receipt import Receipt, Receive
from gateway.telemetry.metrics import Metrics, status_index


def receipt_series(metrics: Metrics) -> Receive:
    """The receiver for these metrics."""
    return partial(_count, metrics)


def _count(metrics: Metrics, receipt: Receipt) -> None:
    tokens = receipt.input_tokens, receipt.output_tokens
    metrics.series.count(
        receipt.tenant,
        receipt.route,
        status_index(receipt.status),
        (
            *tokens,
            receipt.cached_tokens,
            receipt.reasoning_tokens,
            sum(tokens) if receipt.is_estimated else 0,
            len(receipt.failed_models),
            receipt.cost_usd,
            receipt.machine_seconds,
        ),
    )
