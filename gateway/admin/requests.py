"""GET /admin/requests: the last requests of all workers, one whole, those that run, and how to cancel one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from gateway.admin.access import AdminAccess
from gateway.errors import NotFound
from gateway.exchange.shape import encode
from gateway.pipeline.recent_requests import NUM_KEPT, RecentRequests
from gateway.processes.worker_peers import Answers, WorkerPeers
from gateway.requests import refusals
from gateway.web.http_call import HttpCall

PATH = "/admin/requests"
FILTERS = ("tenant", "model", "status")
LATE_S = 2.0
POLL_S = 0.05
"""A record waits so long, from its request's end, for what an engine has still to tell."""


class RequestsEndpoint:
    """Asks all workers: each knows only what it has answered itself."""

    def __init__(self, access: AdminAccess, peers: WorkerPeers) -> None:
        self._access = access
        self._peers = peers

    async def list(self, call: HttpCall) -> None:
        """The newest requests that match the query."""
        self._access.look(call)
        given = call.query
        for name in given:
            if name not in ("limit", *FILTERS):
                raise refusals.unknown_field(name, ["limit", *FILTERS])
        limit = given.get("limit", str(NUM_KEPT))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= NUM_KEPT):
            raise refusals.wrong_value("limit", f"expected 1 to {NUM_KEPT}", limit[:20])
        answers = await self._peers.ask_all("requests", NUM_KEPT)
        rows = [row for row in _rows(answers) if _matches(row, given)]
        rows.sort(key=lambda row: row["monotonic_s"], reverse=True)
        await _respond(call, {"object": "list", "data": rows[: int(limit)]}, answers)

    async def in_flight(self, call: HttpCall) -> None:
        """The requests that run, the oldest first."""
        self._access.look(call)
        answers = await self._peers.ask_all("in_flight")
        rows = sorted(_rows(answers), key=lambda row: row["since_s"])
        await _respond(call, {"object": "list", "data": rows}, answers)

    async def show(self, call: HttpCall) -> None:
        """One whole record, also what engines tell after the request's end. Raises NotFound."""
        self._access.look(call)
        request_id = call.scope["path"].removeprefix(f"{PATH}/")  # it may have slashes
        wanted = {"id": request_id, "tenant": call.query.get("tenant")}
        while True:
            answers = await self._peers.ask_all("request", wanted)
            found = [each["record"] for each in answers.by_worker.values() if each["record"] is not None]
            if not found:
                raise NotFound(
                    f"No record has this id. Each worker keeps its last {NUM_KEPT}: GET {PATH} lists them."
                    + _missing(answers),
                    param="id",
                )
            record = max(found, key=lambda record: record["monotonic_s"])
            if not record["is_partial"] or time.monotonic() - record["monotonic_s"] > LATE_S:
                break
            await asyncio.sleep(POLL_S)
        await _respond(call, record, answers)

    async def cancel(self, call: HttpCall) -> None:
        """End a request that runs. Raises NotFound."""
        by = self._access.change(call)
        wanted = {"id": call.path_id, "tenant": call.query.get("tenant"), "by": by.tenant}
        answers = await self._peers.ask_all("cancel", wanted)
        cancelled = sum(each["cancelled"] for each in answers.by_worker.values())
        if not cancelled:
            raise NotFound(
                "No request with this id runs: GET /admin/requests/in-flight lists those that do."
                + _missing(answers),
                param="id",
            )
        await _respond(
            call, {"object": "request.cancelled", "id": call.path_id, "cancelled": cancelled}, answers
        )


def answer_peers(peers: WorkerPeers, recent: RecentRequests) -> None:
    """Let other workers ask for what this one knows."""
    peers.on("requests", recent.rows)
    peers.on("request", recent.record)
    peers.on("in_flight", recent.in_flight)
    peers.on("cancel", recent.cancel)


def _rows(answers: Answers) -> list[dict[str, Any]]:
    return [row | {"worker": n} for n, each in answers.by_worker.items() for row in each["rows"]]


def _matches(row: Mapping[str, Any], given: Mapping[str, str]) -> bool:
    return all(given[name] in ("", str(row[name])) for name in FILTERS if name in given)


def _missing(answers: Answers) -> str:
    if not answers.missing:
        return ""
    return f" Workers {', '.join(map(str, answers.missing))} did not answer: ask again."


async def _respond(call: HttpCall, body: Mapping[str, Any], answers: Answers) -> None:
    await call.respond(
        encode({**body, "missing_workers": answers.missing}), headers={"cache-control": "no-store"}
    )
