from __future__ import annotations

from dataclasses import replace

from gateway.errors import InvalidRequest, TimedOut
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.providers.fake import FakeProvider
from gateway.routing.other_models import OtherModels
from gateway.web.deadlines import TimeLimits
from policies.routes import Action, Fallback
from policies.routing import Choice
from tests.gateway.pipeline.exchanges import exchange_of, routed_to

TABLE = ModelTable([ServedModel(n, "engine", FakeProvider(), TimeLimits(None, None, 60)) for n in "ab"], {})
REFUSED = InvalidRequest("no", code="content_filter")


def answered_by_a(fallback: Fallback) -> Exchange:
    exchange = exchange_of()
    exchange.route(routed_to(TABLE.resolve("a"), Choice("", changes=(Action(fallback=fallback),))))
    return exchange


async def test_the_next_model_is_one_that_exists_and_has_not_failed() -> None:
    fallback = Fallback(any=["gone", "a", "b"])
    exchange = answered_by_a(fallback)
    found = OtherModels(TABLE, 2).after(exchange, fallback, "timeout")
    assert found is not None and found.name == "b"
    assert OtherModels(TABLE, 1).after(exchange, fallback, "timeout") is None
    assert OtherModels(TABLE, 2).after(exchange, fallback, None) is None


async def test_another_model_takes_over_what_guardrails_refuse() -> None:
    others = OtherModels(TABLE, 3)
    exchange = answered_by_a(Fallback(refused=["b"]))
    assert not others.try_replace_refusing(exchange, TimedOut("late"))
    assert others.try_replace_refusing(exchange, REFUSED)
    assert exchange.model is TABLE.resolve("b") and exchange.attempts.failed_models == ["a"]
    assert exchange.reason == ", a: refused"
    assert not others.try_replace_refusing(exchange, REFUSED)


async def test_upstreams_that_are_out_come_last() -> None:
    state = ModelState(ready=False)
    out = ServedModel("b", "upstream", FakeProvider(), TimeLimits(None, None, 60), lambda: state)
    table = ModelTable([TABLE.resolve("a"), out, replace(TABLE.resolve("b"), name="c")], {})
    exchange = answered_by_a(Fallback(any=["b", "c"]))
    found = OtherModels(table, 3).after(exchange, Fallback(any=["b", "c"]), "timeout")
    assert found is not None and found.name == "c"
    assert OtherModels(table, 3).after(exchange, Fallback(any=["b"]), "timeout") is out
