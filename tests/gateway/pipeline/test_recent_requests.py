"""The ring of records: any order of requests leaves the newest, and each is found by its id."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer import Usage
from gateway.pipeline.recent_requests import RecentRequests
from gateway.pipeline.request_record import Record
from gateway.telemetry.request import Timeline
from tests.gateway.pipeline.exchanges import exchange_of

NUM_KEPT = 5


def record_with(request_id: str, tenant: str, number: int) -> Record:
    row: dict[str, Any] = {
        "id": request_id, "tenant": tenant, "number": number, "duration_ms": 1.0, "first_token_ms": None,
        "endpoint": "chat", "status": 200,
    }  # fmt: skip
    return Record(row, {}, Timeline(0.0, []), Usage(), None, (), ())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"))), st.integers(0, 9))
def test_the_ring_is_the_end_of_all_requests(asked: list[tuple[str, str]], limit: int) -> None:
    recent = RecentRequests(NUM_KEPT)
    for number, (request_id, tenant) in enumerate(asked):
        recent.records.append(record_with(request_id, tenant, number))
    left = [*enumerate(asked)][-NUM_KEPT:][::-1]
    assert [row["number"] for row in recent.rows(limit)["rows"]] == [number for number, _ in left][:limit]
    for request_id in "abc":
        for tenant in ("x", "y", "", None):
            same = [n for n, each in left if each[0] == request_id and tenant in (None, "", each[1])]
            found = recent.record({"id": request_id, "tenant": tenant})["record"]
            assert (None if found is None else found["number"]) == (same[0] if same else None)


async def test_cancel_reaches_those_of_the_id_and_tenant_alone(caplog: pytest.LogCaptureFixture) -> None:
    recent = RecentRequests()
    exchange = exchange_of()  # its id is "id"
    recent.running[exchange] = None
    assert recent.cancel({"id": "other"}) == recent.cancel({"id": "id", "tenant": "x"}) == {"cancelled": 0}
    assert exchange.asked.deadlines.cancel_reason is None and not caplog.records
    assert recent.in_flight()["rows"][0]["phase"] == "queued"


@pytest.mark.parametrize("argument", [None, 3, [], "id", {}, {"tenant": "x"}])
def test_garbage_of_a_worker_is_an_error_of_its_question(argument: dict[str, Any]) -> None:
    recent = RecentRequests()
    recent.records.append(record_with("a", "x", 0))
    with pytest.raises((TypeError, KeyError)):
        recent.record(argument)
