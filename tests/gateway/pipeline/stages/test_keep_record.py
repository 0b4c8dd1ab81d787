"""A request is among those that run while it does, and leaves one record however it ends."""

from __future__ import annotations

import pytest

from gateway.errors import ApiError, InvalidRequest, Unauthorized
from gateway.pipeline.recent_requests import RecentRequests
from gateway.pipeline.stages.keep_record import KeepRecord
from tests.gateway.pipeline.exchanges import TELEMETRY, exchange_of, models


@pytest.mark.parametrize(
    ("error", "num_kept"), [(None, 1), (InvalidRequest("no"), 1), (Unauthorized("who?"), 0)]
)
async def test_a_request_leaves_one_record(error: ApiError | None, num_kept: int) -> None:
    recent = RecentRequests()
    stage, exchange = KeepRecord(recent, models(), keeps_texts=False), exchange_of()
    await stage.enter(exchange)
    assert len(recent.running) == 1 and exchange.asked.telemetry.timeline is not None
    with exchange.asked.telemetry.stage("admit"):
        pass
    exchange.error = error
    stage.settle(exchange)
    assert not recent.running and len(recent.records) == num_kept
    for record in recent.records:
        assert record.row["status"] == (200 if error is None else 400)
        assert [bar["name"] for bar in record.whole()["timeline"]] == ["http", "admit"]


async def test_without_a_console_there_is_nothing() -> None:
    stage, exchange = KeepRecord(None, models(), keeps_texts=True), exchange_of()
    await stage.enter(exchange)
    stage.settle(exchange)
    assert exchange.asked.telemetry.timeline is None


async def test_what_engines_compute_for_a_shadow_is_not_the_requests() -> None:
    exchange = exchange_of()
    await KeepRecord(RecentRequests(), models(), keeps_texts=False).enter(exchange)
    own = exchange.asked.telemetry
    assert own.timeline is not None
    assert exchange.model_call(None, own).computed is own.timeline.computed  # type: ignore[type-var]
    assert exchange.model_call(None, TELEMETRY.begin("shadow", "", "", [])).computed is None  # type: ignore[type-var]
