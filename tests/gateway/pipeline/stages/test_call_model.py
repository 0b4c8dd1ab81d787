"""Calls fall back to other models before the first byte of an answer, a bounded number of times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from gateway.answer import Delta, Generated
from gateway.errors import ApiError, InvalidRequest, RateLimited, ServerError, TimedOut, Unavailable
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.fleet.budget import ALWAYS_PER_S, RetryBudget
from gateway.fleet.fleet import Fleet
from gateway.fleet.health import Health
from gateway.fleet.target import Target
from gateway.pipeline.stages.call_model import CallModel
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider, Script, TextCall
from gateway.routing.other_models import OtherModels
from gateway.web.deadlines import TimeLimits
from policies.document import Policies
from policies.routes import Fallback, Route, RoutingSection, Rule
from tests.gateway.pipeline.exchanges import exchange_of


def failing(error: ApiError) -> Script:
    async def script(call: TextCall) -> AsyncIterator[Delta]:
        raise error
        yield

    return script


async def silent(call: TextCall) -> AsyncIterator[Delta]:
    await asyncio.Event().wait()
    yield Delta(0)


async def breaks_off(call: TextCall) -> AsyncIterator[Delta]:
    yield Delta(0, "one")
    raise ServerError("broken")


def served(name: str, provider: FakeProvider, *, ready: bool = True) -> ServedModel:
    state = ModelState(ready=ready)
    return ServedModel(name, "engine", provider, TimeLimits(0.05, None, 60), lambda: state)


async def answered(
    models: Sequence[ServedModel],
    fallback: Fallback | None,
    *,
    max_attempts: int = 3,
    releases: Mapping[str, str] = MappingProxyType({}),
) -> Exchange:
    table = ModelTable(models, {}, releases)
    route = Route(model=models[0].name, fallback=fallback)
    policies = Policies(routes={"auto": route}, routing=RoutingSection(expose=True))
    exchange = exchange_of()
    await ReadRequest().enter(exchange)
    await ChooseModel(table, policies).enter(exchange)
    await CallModel(OtherModels(table, max_attempts)).enter(exchange)
    return exchange


async def text_of(exchange: Exchange) -> str:
    assert isinstance(exchange.answer, Generated)
    return "".join([delta.text async for delta in exchange.answer.deltas])


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (failing(InvalidRequest("x", code="context_length_exceeded")), "context_too_long"),
        (failing(RateLimited("x")), "rate_limited"),
        (silent, "timeout"),
        (failing(ServerError("x")), "server_error"),
        (failing(Unavailable("x")), "unavailable"),
    ],
)
async def test_each_class_of_errors_has_its_list(script: Script, kind: str) -> None:
    failed, taken, other = FakeProvider(script), FakeProvider(), FakeProvider()
    models = [served("a", failed), served("b", taken), served("c", other)]
    exchange = await answered(models, Fallback(any=["c"], **{kind: ["b"]}))  # type: ignore[arg-type]
    assert await text_of(exchange) == "Hello, world!"
    assert [len(each.asked) for each in (failed, taken, other)] == [1, 1, 0]
    assert exchange.model is not None and exchange.model.name == "b"
    assert exchange.response_headers["x-penstock-model"] == "b"
    assert exchange.response_headers["x-penstock-reason"] == f"route auto, default, a: {kind}"


async def test_an_empty_list_overrides_the_common_one() -> None:
    models = [served("a", FakeProvider(failing(RateLimited("x")))), served("b", FakeProvider())]
    with pytest.raises(RateLimited):
        await answered(models, Fallback(any=["b"], rate_limited=[]))


async def test_the_clients_mistakes_are_not_tried_again() -> None:
    other = FakeProvider()
    models = [served("a", FakeProvider(failing(InvalidRequest("x")))), served("b", other)]
    with pytest.raises(InvalidRequest):
        await answered(models, Fallback(any=["b"]))
    assert other.asked == []


async def test_attempts_are_bounded_and_the_last_error_is_sent() -> None:
    providers = [FakeProvider(failing(Unavailable(name))) for name in "abcd"]
    models = [served(name, each) for name, each in zip("abcd", providers, strict=True)]
    with pytest.raises(Unavailable) as caught:
        await answered(models, Fallback(any=["b", "c", "d"]), max_attempts=2)
    assert caught.value.message == "b"
    assert [len(each.asked) for each in providers] == [1, 1, 0, 0]


@pytest.mark.parametrize(("first", "last"), [("a", "v2"), ("v2", "b")])
async def test_a_fallback_is_the_stable_release_and_not_what_has_failed(first: str, last: str) -> None:
    failed = FakeProvider(failing(Unavailable("x")))
    names = [first, *(name for name in ("a", "b", "m", "v2") if name != first)]
    models = [served(name, failed if name == first else FakeProvider()) for name in names]
    exchange = await answered(models, Fallback(any=["m", "b"]), releases={"m": "v2"})
    assert exchange.model is not None and exchange.model.name == last


async def test_no_model_is_tried_twice() -> None:
    provider = FakeProvider(failing(Unavailable("x")))
    with pytest.raises(Unavailable):
        await answered([served("a", provider)], Fallback(any=["a", "a"]), max_attempts=9)
    assert len(provider.asked) == 1


async def test_what_is_not_ready_is_passed_over_while_another_is_left() -> None:
    starting, last = FakeProvider(), FakeProvider()
    exchange = await answered([served("a", starting, ready=False), served("b", last)], Fallback(any=["b"]))
    assert await text_of(exchange) == "Hello, world!" and starting.asked == []
    exchange = await answered([served("a", starting, ready=False)], Fallback(any=["a"]))
    assert await text_of(exchange) == "Hello, world!"  # there is no other: it waits for this one


async def test_a_model_that_is_full_is_passed_over_at_once_while_another_is_left() -> None:
    provider = FakeProvider()
    target = Target(provider, Health("one"), max_concurrent=1)
    budget = RetryBudget()
    full = replace(served("one", provider), kind="upstream", fleet=Fleet([target], budget))
    fallback = Fallback(rate_limited=["two"])
    models = [full, served("two", FakeProvider())]
    assert not (await answered(models, fallback)).attempts.failed_models
    call = target.begin()
    async with asyncio.timeout(0.5):
        exchange = await answered(models, fallback)
    assert exchange.attempts.failed_models == ["one"] and exchange.reason.endswith("one: rate_limited")
    assert all(budget.try_take(0.0) for _ in range(ALWAYS_PER_S))
    call.complete()


async def test_an_answer_that_has_begun_is_never_restarted() -> None:
    other = FakeProvider()
    exchange = await answered(
        [served("a", FakeProvider(breaks_off)), served("b", other)], Fallback(any=["b"])
    )
    with pytest.raises(ServerError):
        await text_of(exchange)
    assert other.asked == []


async def test_the_last_models_timeout_is_an_error() -> None:
    models = [served("a", FakeProvider(silent)), served("b", FakeProvider(silent))]
    with pytest.raises(TimedOut, match=r"no first token within 0\.05 s"):
        await answered(models, Fallback(any=["b"]))


@pytest.mark.parametrize("last_limit_s", [0.05, 60])
async def test_another_model_has_time_of_its_own_after_one_without_a_limit_to_its_first_token(
    last_limit_s: float,
) -> None:
    slow = replace(served("a", FakeProvider(silent)), limits=TimeLimits(None, None, 0.05))
    other = replace(served("b", FakeProvider()), limits=TimeLimits(None, None, last_limit_s))
    exchange = await answered([slow, other], Fallback(timeout=["b"]))
    assert await text_of(exchange) == "Hello, world!" and exchange.attempts.failed_models == ["a"]


async def test_a_stored_answer_needs_no_call() -> None:
    provider = FakeProvider()
    exchange = await answered([served("a", provider)], None)
    await CallModel(OtherModels(ModelTable([], {}), 3)).enter(exchange)
    assert len(provider.asked) == 1


async def test_rules_for_all_requests_give_models_a_fallback() -> None:
    table = ModelTable(
        [served("m", FakeProvider(failing(RateLimited("x")))), served("b", FakeProvider())], {}
    )
    rules = [Rule(fallback=Fallback(any=["b"]))]
    exchange = exchange_of("completions")
    await ReadRequest().enter(exchange)
    await ChooseModel(table, Policies(routing=RoutingSection(rules=rules))).enter(exchange)
    await CallModel(OtherModels(table, 3)).enter(exchange)
    assert exchange.model is not None and exchange.model.name == "b"
