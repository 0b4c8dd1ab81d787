from __future__ import annotations

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.accounting.admission import NOT_LIMITED
from gateway.auth import KeyRing
from gateway.errors import BodyTooLarge, InvalidRequest, TimedOut
from gateway.exchange.exchange import Endpoint, Exchange, Stage
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline, PipelineParts
from gateway.pipeline.stages.choose_model import ChooseModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider
from gateway.routing.candidates import Selection
from gateway.screening.guards import Guards
from gateway.web.deadlines import TimeLimits
from policies.choose import ChoiceCandidate, Choose
from policies.document import Policies
from policies.guardrails import GuardrailProfile, GuardrailsSection, PersonalDataRules
from policies.routes import Fallback, Route, RoutingSection, Rule, Shadow
from policies.tenants import Limits, Tier
from tests.gateway.pipeline.exchanges import (
    BODIES,
    METRICS,
    exchange_of,
    exchange_with,
    models,
    response_cache,
)


@pytest.mark.parametrize("endpoint", BODIES)
async def test_the_stages_in_order_give_an_answer(endpoint: Endpoint) -> None:
    provider = FakeProvider()
    exchange = exchange_of(endpoint)
    pipeline = Pipeline(KeyRing([]), models(provider), response_cache(), Policies())
    await pipeline.run(exchange)
    (asked,) = provider.asked
    assert asked.request is exchange.request and asked.body is exchange.body
    assert (asked.request_id, asked.tenant_salt) == (
        exchange.asked.request_id,
        exchange.principal.tenant_salt,
    )
    assert exchange.answer is not None and exchange.usage is exchange.answer.usage
    pipeline.settle(exchange)


def num_late() -> float:
    labels = {"endpoint": "chat", "model": "m", "error": "TimedOut"}
    families = text_string_to_metric_families(METRICS.render().decode())
    samples = [sample for family in families for sample in family.samples if sample.labels == labels]
    return sum(each.value for each in samples if each.name == "penstock_model_call_errors_total")


async def test_settling_records_the_error() -> None:
    before = num_late()
    exchange = exchange_of()
    pipeline = Pipeline(KeyRing([]), models(), response_cache(), Policies())
    await pipeline.run(exchange)
    exchange.error = TimedOut("late")
    pipeline.settle(exchange)
    assert num_late() == before + 1


class Noting(Stage):
    """Notes what is called."""

    def __init__(self, name: str, notes: list[str], fails_to: str = "") -> None:
        self._name, self._notes, self._fails_to = name, notes, fails_to

    async def enter(self, exchange: Exchange) -> None:
        self._notes.append(f"enter {self._name}")
        if self._fails_to == "enter":
            raise TimedOut("late")

    def settle(self, exchange: Exchange) -> None:
        self._notes.append(f"settle {self._name}")
        if self._fails_to == "settle":
            raise RuntimeError(self._fails_to.upper())


async def test_what_was_entered_is_settled_in_reverse_and_once(caplog: pytest.LogCaptureFixture) -> None:
    """The stage that raised has begun something too; those after it have not."""
    notes: list[str] = []
    pipeline = Pipeline(KeyRing([]), models(), response_cache(), Policies())
    fails = {"b": "settle", "c": "enter"}
    pipeline.stages = tuple(Noting(name, notes, fails.get(name, "")) for name in "abcd")
    exchange = exchange_of()
    with pytest.raises(TimedOut):
        await pipeline.run(exchange)
    for _ in range(2):
        pipeline.settle(exchange)
    assert notes == ["enter a", "enter b", "enter c", "settle c", "settle b", "settle a"]
    assert "settled by Noting, failed with RuntimeError" in caplog.text and "SETTLE" not in caplog.text


async def test_a_count_of_tokens_is_neither_admitted_nor_accounted_for() -> None:
    limited = Policies(tiers={"default": Tier(limits=Limits(requests_per_minute=1))})
    pipeline, exchange = Pipeline(KeyRing([]), models(), response_cache(), limited), exchange_of()
    await pipeline.choose(exchange)
    assert exchange.model is not None and exchange.admitted is NOT_LIMITED
    names = [type(stage).__name__ for stage in exchange.entered]
    assert names == ["Authorize", "ReadRequest", "ChooseModel", "CheckFields"]


@pytest.mark.parametrize("refusal", [BodyTooLarge("big"), InvalidRequest("bad")])
async def test_a_refusal_stops_the_stages(refusal: Exception) -> None:
    async def refuse() -> bytes:
        raise refusal

    exchange = exchange_of()
    exchange.asked = msgspec.structs.replace(exchange.asked, read_body=refuse)
    provider = FakeProvider()
    pipeline = Pipeline(KeyRing([]), models(provider), response_cache(), Policies())
    with pytest.raises(type(refusal)):
        await pipeline.run(exchange)
    pipeline.settle(exchange)
    assert provider.asked == [] and exchange.model is None


async def test_a_decision_enters_the_stages_of_an_answer_up_to_the_guardrails() -> None:
    provider = FakeProvider()
    pipeline = Pipeline(KeyRing([]), models(provider), response_cache(), Policies())
    whole, decided = exchange_of(), exchange_of()
    await pipeline.run(whole)
    await pipeline.decide(decided)
    names = [type(stage).__name__ for stage in decided.entered]
    assert decided.entered == whole.entered[2 : 2 + len(names)]
    assert (names[0], names[-1]) == ("ReadRequest", "ScreenRequest")
    assert decided.chosen_model.name == "m" and len(provider.asked) == 1


def test_stages_that_the_policies_leave_nothing_to_do_are_left_out() -> None:
    def names(policies: Policies) -> set[str]:
        pipeline = Pipeline(KeyRing([]), models(), response_cache(), policies)
        return {type(stage).__name__ for stage in pipeline.stages}

    none = names(Policies())
    assert "CallModel" in none and not none & {"Mirror", "Listen", "ScreenAnswer"}
    rule = Rule(shadow=Shadow(model="m"))
    assert names(Policies(routing=RoutingSection(rules=[rule]))) - none == {"Mirror", "Listen"}
    profiles = {"p": GuardrailProfile()}
    assert names(Policies(guardrails=GuardrailsSection(profiles=profiles))) - none == {"ScreenAnswer"}


async def test_what_one_models_guardrails_refuse_another_may_answer() -> None:
    """Personal data may not leave the house, but our own model may see it."""
    strict = GuardrailProfile(personal_data=PersonalDataRules(action="block"))
    limits = TimeLimits(None, None, 60)
    rented, own = FakeProvider(), FakeProvider()
    table = ModelTable(
        [
            ServedModel("rented", "upstream", rented, limits, guardrails="strict"),
            ServedModel("own", "engine", own, limits),
        ],
        {},
    )
    for fallback, expected in ((Fallback(refused=["own"]), "own"), (Fallback(timeout=["own"]), None)):
        route = Route(model="rented", fallback=fallback)
        guardrails = GuardrailsSection(profiles={"strict": strict})
        policies = Policies(
            routes={"auto": route}, routing=RoutingSection(expose=True), guardrails=guardrails
        )
        pipeline = Pipeline(KeyRing([]), table, response_cache(), policies)
        content = "Write to ann@example.com"
        exchange = exchange_with({"model": "auto", "messages": [{"role": "user", "content": content}]})
        if expected is None:
            with pytest.raises(InvalidRequest, match="refused by a guardrail"):
                await pipeline.run(exchange)
            continue
        await pipeline.run(exchange)
        assert exchange.model is not None and exchange.model.name == "own"
        assert exchange.response_headers["x-penstock-reason"] == "route auto, default, rented: refused"
    assert not rented.asked and len(own.asked) == 1


async def test_a_copy_of_the_policies_routes_and_screens_as_they_do() -> None:
    """What is compiled from a section is found by the section's name, not by the object."""
    strict = GuardrailProfile(personal_data=PersonalDataRules(action="block"))
    section = Choose(candidates={"m": ChoiceCandidate()}, strategy="cheapest")
    policies = Policies(
        routes={"auto": Route(rules=[Rule(choose=section)], guardrails="strict")},
        routing=RoutingSection(rules=[Rule(when="request.stream", choose=section)]),
        guardrails=GuardrailsSection(profiles={"strict": strict}),
    )
    copied = msgspec.convert(msgspec.to_builtins(policies), Policies)
    assert copied.routes["auto"] is not policies.routes["auto"]
    parts = PipelineParts(guards=Guards(copied.guardrails))
    pipeline = Pipeline(KeyRing([]), models(), response_cache(), policies, parts)
    stage = ChooseModel(models(), policies, selection=Selection(models(), copied))
    for is_stream, reason in ((False, "route auto, rule 1"), (True, "route auto, routing.rules rule 1")):
        body = {"model": "auto", "messages": [{"role": "user", "content": "Write to ann@example.com"}]}
        exchange = exchange_with({**body, "stream": is_stream})
        await ReadRequest().enter(exchange)
        await stage.enter(exchange)
        assert exchange.reason.startswith(f"{reason}, cheapest")
    with pytest.raises(InvalidRequest, match="refused by a guardrail"):
        await pipeline.run(exchange_with(body))
