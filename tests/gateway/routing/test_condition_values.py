"""Each variable's value for a request; nothing that no condition refers to is computed."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider
from gateway.routing.condition_values import Facts
from gateway.web.deadlines import TimeLimits
from policies.document import Policies
from policies.tenants import Tenant
from policies.variables import SIGNALS, VARIABLES
from tests.gateway.pipeline.exchanges import exchange_with

CHAT = {"model": "auto", "messages": [{"role": "user", "content": "12345"}]}


async def fact(name: str, body: dict[str, Any], endpoint: str = "chat") -> object:
    exchange = exchange_with(body, endpoint)  # type: ignore[arg-type]
    await ReadRequest().enter(exchange)
    return Facts(ModelTable([], {}), Policies()).of(exchange, [name], [])[name]


@pytest.mark.parametrize(
    ("name", "more", "value"),
    [
        ("request.model", {}, "auto"),
        ("request.endpoint", {}, "chat"),
        ("request.num_messages", {}, 1),
        ("request.num_tokens_estimate", {}, 2),
        (
            "request.num_tokens_estimate",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "123456789"}]}]},
            3,
        ),
        ("request.has_tools", {}, False),
        ("request.has_tools", {"tools": [{"type": "function"}]}, True),
        ("request.wants_json", {}, False),
        ("request.wants_json", {"response_format": {"type": "json_object"}}, True),
        ("request.stream", {"stream": True}, True),
        ("request.max_tokens", {}, 0),
        ("request.max_tokens", {"max_completion_tokens": 9}, 9),
        ("request.reasoning_effort", {"reasoning_effort": "low"}, "low"),
        ("request.user", {"user": "u"}, "u"),
        ("request.user", {"user": "u", "safety_identifier": "s"}, "s"),
        ("principal.key_id", {}, ""),
        ("tenant.name", {}, "default"),
        ("tenant.tier", {}, "default"),
    ],
)
async def test_values(name: str, more: dict[str, Any], value: object) -> None:
    assert await fact(name, {**CHAT, **more}) == value


@pytest.mark.parametrize(
    ("prompt", "tokens"), [("12345", 2), ([1, 2, 3], 3), ([[1, 2], [3]], 3), (["1234", "5678"], 2)]
)
async def test_prompts_of_completions(prompt: object, tokens: int) -> None:
    body = {"model": "m", "prompt": prompt}
    assert await fact("request.num_tokens_estimate", body, "completions") == tokens


async def test_maps_have_the_keys_of_the_conditions() -> None:
    small = ServedModel(
        "small", "engine", FakeProvider(), TimeLimits(None, None, 9), lambda: ModelState(ready=False),
        num_waiting=lambda: 7,
    )  # fmt: skip
    exchange = exchange_with({**CHAT, "metadata": {"team": "red"}}, headers={"x-region": "eu"})
    await ReadRequest().enter(exchange)
    keys = [
        ("headers", "x-region"), ("headers", "x-none"), ("request.metadata", "team"),
        ("request.metadata", "none"), ("live.ready", "small"), ("live.queue", "small"),
        ("live.ready", "gone"),
    ]  # fmt: skip
    assert Facts(ModelTable([small], {}), Policies()).of(exchange, {name for name, _ in keys}, keys) == {
        "headers": {"x-region": "eu", "x-none": ""},
        "request.metadata": {"team": "red", "none": ""},
        "live.ready": {"small": False, "gone": False},
        "live.queue": {"small": 7},
    }


async def test_a_tenants_tier() -> None:
    exchange = exchange_with(CHAT)
    await ReadRequest().enter(exchange)
    facts = Facts(ModelTable([], {}), Policies(tenants={"default": Tenant(tier="gold")}))
    assert facts.of(exchange, ["tenant.tier"], []) == {"tenant.tier": "gold"}


@pytest.mark.parametrize("name", sorted(name for name in VARIABLES if not name.startswith(SIGNALS)))
async def test_every_variable_has_a_value(name: str) -> None:
    await fact(name, CHAT)
