"""Explanations and failed probes name every value that was used, and nothing of a prompt."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.routing.explanation import explain, explain_placement
from gateway.routing.probe_result import Decision, failures
from policies.document import Policies
from policies.probes import Expectation, Probe
from policies.retries import Hedge, Retry
from policies.routes import (
    Bounds,
    Clamp,
    Fallback,
    Parameters,
    Refusal,
    Route,
    Rule,
    Shadow,
    Split,
    Timeouts,
)
from policies.routing import Choice, Routing
from router.log import Placement, ReplicaQuote

RULES = [
    Rule(name="long", when="request.num_messages > 9", model="large"),
    Rule(when="tenant.tier == 'free' && !request.stream", refuse=Refusal(message="Pay.", status=402)),
    Rule(name="canary", when="request.stream", split=Split(models={"new": 1, "old": 3})),
]
ROUTE = Route(
    rules=RULES,
    model="small",
    fallback=Fallback(any=["large"], timeout=[]),
    parameters=Parameters(strip=["seed"], clamp=Clamp(max_tokens=Bounds(max=50))),
    system="secret words",
    timeouts=Timeouts(total_s=9),
)
ROUTING = Routing(Policies(routes={"auto": ROUTE}))


def choice(**facts: object) -> Choice:
    values = {"request.num_messages": 1, "tenant.tier": "gold", "request.stream": False}
    return ROUTING.decide(
        "auto", {**values, **{k.replace("__", "."): v for k, v in facts.items()}}, keep_tried=True
    )


def test_a_recorded_failure_is_no_refusal() -> None:
    requested = ROUTING.decide("small", {}, keep_tried=True)
    found = explain(Decision(requested, ("small",), status=502), "v1").splitlines()
    assert found[2:5] == ["model    small", "failed   with status 502", "why      requested"]


def test_every_rule_with_its_values_and_what_follows() -> None:
    assert explain(Decision(choice(), ("small",), cache="exact"), "v1") == (
        "policy   v1\n"
        "route    auto\n"
        "rule     rule 1: no, request.num_messages > 9   [request.num_messages = 1]\n"
        "rule     rule 2: no, tenant.tier == 'free' && !request.stream   "
        "[request.stream = false, tenant.tier = 'gold']\n"
        "rule     rule 3: no, request.stream   [request.stream = false]\n"
        "rule     default: always\n"
        "model    small\n"
        "why      route auto, default\n"
        "changes  strip: [seed], clamp: {max_tokens: {max: 50}}\n"
        "changes  a system text of 12 characters is added\n"
        "timeouts total_s: 9\n"
        "fallback any → large\n"
        "cache    exact\n"
    )


def test_a_split_and_a_refusal() -> None:
    text = explain(Decision(choice(request__stream=True), ("new", "old")), "v1")
    assert "model    new or old\n" in text and "why      route auto, rule 3 (canary)\n" in text
    assert "split    new 25%, old 75%; the same for each user\n" in text
    text = explain(Decision(choice(tenant__tier="free"), status=402, message="Pay."), "v1")
    assert "refused  402: Pay.\n" in text and "model" not in text.replace("rule", "")


@pytest.mark.parametrize(
    ("decision", "shown", "hidden"),
    [
        (
            {"models": ("small",), "is_blocked": True, "guardrails": ("pattern:p",)},
            ["blocked  by a guardrail: no model is called", "found    pattern:p"],
            ("model", "shadow", "masked"),
        ),
        (
            {"status": 400, "message": "No.", "is_blocked": True, "guardrails": ("pattern:p",)},
            ["refused  400: No.", "blocked  by a guardrail: no model is called", "found    pattern:p"],
            ("model", "shadow", "masked"),
        ),
        (
            {"models": ("small",), "guardrails": ("email", "pattern:p"), "masked": ("email",)},
            ["model    small", "shadow   100% also to large", "found    email, pattern:p", "masked   email"],
            ("blocked",),
        ),
    ],
)
def test_what_guardrails_do_and_a_shadow_only_of_what_they_let_pass(
    decision: dict[str, Any], shown: list[str], hidden: tuple[str, ...]
) -> None:
    route = Route(model="small", shadow=Shadow(model="large", share=1.0))
    routing = Routing(Policies(routes={"auto": route}))
    lines = explain(Decision(routing.decide("auto", {}), **decision), "v1").splitlines()
    assert [line for line in shown if line not in lines] == []
    assert [line for line in lines if line.startswith(hidden)] == []


@pytest.mark.parametrize(
    ("expect", "messages"),
    [
        (Expectation(route="auto", rule="canary", model="old", status=200), []),
        (Expectation(rule="rule 3", model="new"), []),
        (
            Expectation(model="small"),
            ["expected model 'small', got 'new or old'"],
        ),
        (Expectation(rule="rule 1"), ["expected rule 'rule 1', got 'rule 3'"]),
        (Expectation(route=""), ["expected route '', got 'auto'"]),
        (Expectation(status=403), ["expected status 403, got 200"]),
        (Expectation(cache="exact"), ["expected cache 'exact', got 'none'"]),
    ],
)
def test_what_differs_from_a_probes_expectation(expect: Expectation, messages: list[str]) -> None:
    decision = Decision(choice(request__stream=True), ("new", "old"))
    reason = " (route auto, rule 3 (canary))"
    assert list(failures(Probe(expect=expect), decision)) == [message + reason for message in messages]


def test_a_refusal_fails_a_probe_that_expects_a_model() -> None:
    decision = Decision(choice(tenant__tier="free"), status=402, message="Pay.")
    found = list(failures(Probe(expect=Expectation(model="small")), decision))
    assert [each.partition(" (")[0] for each in found] == [
        "expected status 200, got 402",
        "expected model 'small', got 'none'",
    ]


def test_a_probes_request() -> None:
    probe = Probe(expect=Expectation(), ask="hi", request={"model": "b", "n": 2})
    assert probe.body() == {"model": "b", "n": 2, "messages": [{"role": "user", "content": "hi"}]}


def test_how_an_upstream_is_retried() -> None:
    for retry, shown in (
        (Retry(attempts=1, on=["connect"]), "attempts: 1, "),
        (Retry(attempts=0), "never\n"),
    ):
        routing = Routing(Policies(routes={"auto": Route(model="small", retry=retry)}))
        text = explain(Decision(routing.decide("auto", {}), ("small",)), "v1")
        assert f"retry    {shown}" in text


def test_when_a_second_target_is_asked() -> None:
    for rule, shown in ((Hedge(), "after: p95, budget: 0.1"), (Hedge(after_s=2.0), "after_s: 2.0")):
        routing = Routing(Policies(routes={"auto": Route(model="small", hedge=rule)}))
        text = explain(Decision(routing.decide("auto", {}), ("small",)), "v1")
        assert "hedge    after: p95, " in text and shown in text


def test_the_quotes_of_replicas() -> None:
    quotes = [
        ReplicaQuote(replica=0, seconds=0.0123, queue_tokens=7, uncached_tokens=90, cached_tokens=32),
        ReplicaQuote(replica=1, uncached_tokens=122, why_not="not ready"),
    ]
    assert explain_placement(Placement(chosen=0, reason="least seconds", quotes=quotes)) == (
        "replica  0: 12.3 ms to the first token, chosen: least seconds   [queue 7, uncached 90, cached 32]\n"
        "replica  1: not ready   [queue 0, uncached 122, cached 0]\n"
    )
