"""The last requests of this worker, and those that run: what other workers and the console ask for."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from gateway.exchange.exchange import Exchange
from gateway.pipeline.request_record import Record

logger = logging.getLogger("penstock.gateway")

NUM_KEPT = 200
Selector = dict[str, Any]
"""`id` and `tenant` of a request; a tenant may use another's id, so an empty tenant means any."""


class RecentRequests:
    """One for all versions of the policies. Its handlers take what another worker sends: see WorkerPeers."""

    def __init__(self, num_kept: int = NUM_KEPT) -> None:
        self.records: deque[Record] = deque(maxlen=num_kept)
        self.running: dict[Exchange, None] = {}  # the oldest first

    def rows(self, limit: int) -> dict[str, Any]:
        """The newest, each in one line, newest first."""
        newest = reversed(self.records)
        return {"rows": [record.row for record, _ in zip(newest, range(limit), strict=False)]}

    def record(self, wanted: Selector) -> dict[str, Any]:
        """The newest of an id, whole."""
        found = (each for each in reversed(self.records) if _is(wanted, each.row["id"], each.row["tenant"]))
        return {"record": next((each.whole() for each in found), None)}

    def in_flight(self, _: object = None) -> dict[str, Any]:
        """The requests that run, the oldest first."""
        return {"rows": [_running(each) for each in self.running]}

    def cancel(self, wanted: Selector) -> dict[str, Any]:
        """End the requests of an id, and log who did; `by` is the tenant of the operator."""
        found = [each for each in self.running if _is(wanted, each.asked.request_id, each.principal.tenant)]
        for exchange in found:
            exchange.asked.deadlines.cancel()
            fields = {"request_id": exchange.asked.request_id, "tenant": exchange.principal.tenant}
            fields["cancelled_by"] = str(wanted.get("by"))
            logger.warning(
                "request %s of the tenant %s was cancelled by %s", *fields.values(), extra={"fields": fields}
            )
        return {"cancelled": len(found)}


def _is(wanted: Selector, request_id: str, tenant: str) -> bool:
    return request_id == wanted["id"] and wanted.get("tenant") in (None, "", tenant)


def _running(exchange: Exchange) -> dict[str, Any]:
    telemetry = exchange.asked.telemetry
    elapsed_s = telemetry.meter.elapsed_s
    return {
        "id": exchange.asked.request_id,
        "tenant": exchange.principal.tenant,
        "model": "" if exchange.model is None else exchange.model.name,
        "endpoint": exchange.asked.endpoint.name,
        "since_s": time.time() - elapsed_s,
        "elapsed_ms": round(elapsed_s * 1e3),
        "phase": "queued" if telemetry.time_to_first_chunk_s is None else "answering",
        "output_tokens": exchange.usage.completion_tokens,
    }
