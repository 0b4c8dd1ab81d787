"""How a request that has ended is shown: waterfall, drafts, candidates and rules; never a person's name."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from backend.types import RequestTrace
from gateway.accounting.receipt import Charged
from gateway.answer import Usage
from gateway.exchange.exchange import Exchange
from gateway.pipeline.request_record import MAX_CHARS, record_of
from gateway.telemetry.request import Bar, Computed, Timeline
from policies.routing import Choice, Outcome
from router.strategies import Candidate, Decision
from tests.gateway.pipeline.exchanges import exchange_of, models, routed_to

TRACE = RequestTrace(
    "", "1/r", 100, 1000.0, 1000.1, 1000.4, 1000.9, "stop", 32, 1, 12, 8,
    chunks=[(1000.3, 32, 60), (1000.4, 92, 8)], drafters={"ngram": [3, 9, 4], "grammar": [1, 2, 2]},
)  # fmt: skip


def kept_of(began_s: float = 50.0) -> Timeline:
    bars: list[Bar] = [("authorize", 50.0, 50.1, False), ("call m", 50.2, 51.3, True)]
    return Timeline(began_s, bars, [Computed(50.25, TRACE, is_settled=True)])


def whole(exchange: Exchange, kept: Timeline) -> dict[str, Any]:
    """The record as another worker gets it."""
    found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(record_of(exchange, kept).whole()))
    return found


async def test_the_waterfall_goes_down_to_the_engines_steps() -> None:
    exchange = exchange_of()
    bars = whole(exchange, kept_of())["timeline"]
    shown = [(bar["depth"], bar["name"], round(bar["start_ms"]), round(bar["ms"])) for bar in bars[1:]]
    assert shown == [
        (1, "authorize", 0, 100),
        (1, "call m", 200, 1100),
        (2, "queued", 250, 100),
        (2, "prefill", 350, 200),
        (2, "prefill", 550, 100),
        (2, "decode", 650, 500),
    ]
    assert [bar["text"] for bar in bars[4:]] == [
        "60 tokens from 32, 32 before them cached",
        "8 tokens from 92",
        "12 tokens in 8 steps, preempted 1 times, 4 of 9 drafted tokens of ngram accepted, "
        "2 of 2 drafted tokens of grammar accepted",
    ]


async def test_a_request_that_was_never_scheduled_has_waited_only() -> None:
    trace = RequestTrace("", "1/r", 9, 5.0, finished_s=6.0)
    kept = Timeline(50.0, [("call m", 50.0, 51.0, True)], [Computed(50.0, trace)])
    bars = whole(exchange_of(), kept)["timeline"]
    assert [bar["name"] for bar in bars] == ["http", "call m", "queued"] and bars[2]["ms"] == 1000


async def test_what_an_engine_tells_after_the_requests_end_completes_the_record() -> None:
    kept = Timeline(50.0, kept_of().bars, [Computed(50.25), Computed(50.26)])
    record = record_of(exchange_of(), kept)
    assert record.whole()["is_partial"] and record.whole()["drafts"] == {}
    for computed in kept.computed:
        assert [bar["name"] for bar in record.whole()["timeline"]].count("decode") == 0
        computed.settle(None)
    assert not record.whole()["is_partial"]
    kept.computed[1].settle(dataclasses.replace(TRACE, finish_reason="abort"))
    (decode,) = [bar for bar in record.whole()["timeline"] if bar["name"] == "decode"]
    assert decode["text"].endswith(", ended by the gateway") and record.whole()["drafts"]


async def test_each_of_a_thousand_sequences_is_shown_once_and_compared_with_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million comparisons would hold up the event loop for seconds."""
    kept = Timeline(50.0, kept_of().bars, [Computed(50.25, TRACE) for _ in range(1000)])
    monkeypatch.setattr(Computed, "__eq__", lambda *_: pytest.fail("compared"))
    names = [bar["name"] for bar in whole(exchange_of(), kept)["timeline"]]
    assert names.count("decode") == 1000 and len(names) == 3 + 4 * 1000


async def test_drafts_of_all_sequences_are_added_by_drafter() -> None:
    kept = kept_of()
    kept.computed.append(Computed(50.3, TRACE))
    drafts = whole(exchange_of(), kept)["drafts"]
    assert drafts["ngram"] == {"drafts": 6, "proposed": 18, "accepted": 8}


async def test_candidates_have_what_the_strategy_compared() -> None:
    exchange = exchange_of()
    exchange.request = models().models["m"]  # type: ignore[assignment]
    decision = Decision("m", "quality_per_cost", "best", {"m": 0.5})
    routed = routed_to(models().models["m"], Choice("auto", "rule 1", "short"), reason="r")
    candidates = [Candidate("m", 0.7, 1.0, 0.2, cached_share=0.5, usd=0.01)]
    exchange.request = type("Request", (), {"model": "auto"})()
    exchange.route(msgspec.structs.replace(routed, decision=decision, gain=0.1, candidates=candidates))
    found = whole(exchange, kept_of())
    assert (found["strategy"], found["values"], found["gain"]) == ("quality_per_cost", {"m": 0.5}, 0.1)
    assert found["candidates"][0]["usd"] == 0.01 and found["rule_name"] == "short"
    record = record_of(exchange, kept_of())
    assert record.routed is not None and record.routed.model is None, "an old version would stay in memory"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("request.user", "Ada", "(not recorded)"),
        ("request.user", "", ""),
        ("request.reasoning_effort", "low", "low"),
        ("request.reasoning_effort", "any text at all", "(not recorded)"),
        ("request.num_messages", 3, 3),
        ("headers['x-region']", "e" * 500, "e" * MAX_CHARS),
        ("time", 1.5, 1.5),
    ],
)
async def test_values_of_conditions_are_shown_without_people(name: str, value: object, shown: object) -> None:
    exchange = exchange_of()
    tried = [Outcome("rule 1", "a == b", False, {name: value})]
    exchange.request = type("Request", (), {"model": "auto"})()
    again = Choice("auto", tried=tried)
    exchange.route(msgspec.structs.replace(routed_to(None, Choice("auto")), again=lambda: again))
    (found,) = whole(exchange, kept_of())["tried"]
    assert found == {"rule": "rule 1", "condition": "a == b", "matched": False, "values": {name: shown}}


@pytest.mark.parametrize("num_tokens", [0, 1, 21])
async def test_tokens_per_second_are_those_after_the_first(num_tokens: int) -> None:
    exchange = exchange_of()
    exchange.charged = Charged(Usage(5, num_tokens), 0.5)
    telemetry = exchange.asked.telemetry
    telemetry.call_started("m", "penstock", {})
    telemetry.chunk()
    started_s = telemetry._call_started_s
    kept = Timeline(started_s, [("call m", started_s, started_s + 2, True)])
    found = whole(exchange, kept)
    assert found["cost_usd"] == 0.5
    if num_tokens < 2:
        assert found["tokens_per_s"] is None
    else:
        assert found["tokens_per_s"] == pytest.approx(21 / (2 - found["first_token_ms"] / 1e3), rel=0.01)
