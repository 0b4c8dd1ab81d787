"""The rules decide about the model; refusals, splits, headers and trace attributes follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError, NotFound
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.pipeline.stages.choose_model import ChooseModel, pick
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider
from gateway.web.deadlines import TimeLimits
from policies.document import Policies
from policies.routes import Action, Refusal, Route, RoutingSection, Rule, Split
from tests.gateway.pipeline.exchanges import exchange_of, exchange_with, models

CHAT = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
LIMITS = TimeLimits(None, None, 60)


def policies(*rules: Rule, **route: Any) -> Policies:  # noqa: ANN401
    section = RoutingSection(expose=True)
    return Policies(routes={"auto": Route(rules=list(rules), **route)}, routing=section, version="v1")


async def chosen(given: Policies, **more: object) -> Exchange:
    table = ModelTable([ServedModel(name, "engine", FakeProvider(), LIMITS) for name in "abc"], {})
    exchange = exchange_with({**CHAT, **more})
    await ReadRequest().enter(exchange)
    await ChooseModel(table, given).enter(exchange)
    return exchange


def name_of(exchange: Exchange) -> str:
    assert exchange.model is not None
    return exchange.model.name


async def test_without_rules_it_follows_the_tables_routes_or_refuses() -> None:
    exchange = exchange_of()
    await ReadRequest().enter(exchange)
    await ChooseModel(models(), Policies()).enter(exchange)
    assert name_of(exchange) == "m" and exchange.response_headers == {}
    with pytest.raises(NotFound):
        await ChooseModel(ModelTable([], {}), Policies()).enter(exchange)


async def test_the_answer_says_why() -> None:
    exchange = await chosen(
        policies(Rule(when="request.stream", model="b", name="live"), model="a"), stream=True
    )
    assert name_of(exchange) == "b"
    assert exchange.response_headers == {
        "x-penstock-route": "auto",
        "x-penstock-model": "b",
        "x-penstock-reason": "route auto, rule 1 (live)",
    }


async def test_changes_are_applied() -> None:
    exchange = await chosen(policies(Rule(system="Be brief."), model="a"))
    assert exchange.body["messages"][0] == {"role": "system", "content": "Be brief."}


async def test_a_refusal_has_its_message_status_and_reason() -> None:
    with pytest.raises(ApiError) as caught:
        await chosen(policies(refuse=Refusal(message="Not at night.", status=429)))
    error = caught.value
    assert (error.status, error.code, error.message) == (429, "refused_by_policy", "Not at night.")
    assert error.headers["x-penstock-reason"] == "route auto, default"


async def test_a_user_keeps_the_model_of_a_split() -> None:
    split = policies(split=Split(models={"a": 1, "b": 1}))
    users = {f"u{n}": name_of(await chosen(split, user=f"u{n}")) for n in range(40)}
    assert set(users.values()) == {"a", "b"}
    for user, model in users.items():
        assert name_of(await chosen(split, user=user)) == model


async def test_a_conversation_keeps_the_model_of_a_split() -> None:
    split = policies(split=Split(models={"a": 1, "b": 1}, sticky="conversation"))
    found = []
    for number in range(20):
        first = {"role": "user", "content": f"question {number}"}
        later = [first, {"role": "assistant", "content": "x"}, {"role": "user", "content": "more"}]
        found.append(name_of(await chosen(split, messages=[first])))
        assert name_of(await chosen(split, messages=later)) == found[-1]
    assert set(found) == {"a", "b"}


async def test_a_tenant_keeps_the_model_whoever_the_user_is() -> None:
    split = policies(split=Split(models={"a": 1, "b": 1}, sticky="tenant"))
    assert len({name_of(await chosen(split, user=f"u{n}")) for n in range(20)}) == 1


async def test_chance_does_not_stick() -> None:
    split = policies(split=Split(models={"a": 1, "b": 1}, sticky="none"))
    assert {name_of(await chosen(split, user="u")) for _ in range(64)} == {"a", "b"}


def test_weights_are_shares() -> None:
    counts = Counter(pick({"a": 9, "b": 1}, n / 1000) for n in range(1000))
    assert counts == {"a": 900, "b": 100}


@given(
    st.dictionaries(st.text(min_size=1), st.floats(1e-3, 1e6), min_size=1), st.floats(0, 1, exclude_max=True)
)
def test_something_is_always_picked(weights: dict[str, float], draw: float) -> None:
    assert pick(weights, draw) in weights


def test_an_action_names_its_destination() -> None:
    assert Action(model="a").destination == "model" and Action(system="x").destination == ""


async def test_a_split_passes_over_upstreams_that_are_out() -> None:
    out: set[str] = set()

    def state_of(name: str) -> Callable[[], ModelState]:
        return lambda: ModelState(ready=name not in out)

    table = ModelTable(
        [ServedModel(name, "upstream", FakeProvider(), LIMITS, state_of(name)) for name in "abc"], {}
    )
    stage = ChooseModel(table, policies(split=Split(models={"a": 2, "b": 1, "c": 1})))

    async def models_of() -> list[str]:
        exchanges = [exchange_with({**CHAT, "user": f"u{number}"}) for number in range(200)]
        for exchange in exchanges:
            await ReadRequest().enter(exchange)
            await stage.enter(exchange)
        return [name_of(exchange) for exchange in exchanges]

    before = await models_of()
    out.add("a")
    after = await models_of()
    counts = Counter(after)
    assert counts["a"] == 0 and min(counts["b"], counts["c"]) > 60
    assert all(now == then for then, now in zip(before, after, strict=True) if then != "a")
    out |= {"b", "c"}
    assert Counter(await models_of())["a"] > 60  # nothing else is left
