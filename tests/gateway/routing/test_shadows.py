from __future__ import annotations

import asyncio

import pytest

from gateway.routing import shadows
from gateway.routing.shadows import MAX_CONCURRENT, Shadows
from policies.routes import Shadow


def test_each_model_has_its_rate_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(shadows.time, "monotonic", lambda: now_s)
    sent = Shadows()
    rules = Shadow(model="m", share=1.0, max_per_minute=2)
    assert [sent.try_count(rules) for _ in range(3)] == [True, True, False]
    assert sent.try_count(Shadow(model="other", share=1.0, max_per_minute=1))
    now_s += 59.0
    assert not sent.try_count(rules)
    now_s += 1.0
    assert sent.try_count(rules)


async def test_their_number_at_a_time_is_bounded_for_all_models() -> None:
    sent, release = Shadows(), asyncio.Event()
    rules = Shadow(model="m", share=1.0, max_per_minute=100)

    async def work() -> None:
        await release.wait()

    for _ in range(MAX_CONCURRENT):
        assert sent.try_count(rules)
        sent.start(work())
    assert not sent.try_count(rules)
    release.set()
    while not sent.try_count(rules):
        await asyncio.sleep(0)
