"""Rules change fields, the system message and time limits, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.exchange.model_table import Kind, ServedModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider
from gateway.requests.types import ChatRequest
from gateway.routing.request_changes import adapted, change_request
from gateway.web.deadlines import TimeLimits
from policies.routes import Action, Bounds, Clamp, Parameters, SetParameters, Timeouts
from tests.gateway.pipeline.exchanges import exchange_with

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "auto", "messages": [USER]}


async def changed(body: dict[str, Any], *changes: Action, endpoint: str = "chat") -> dict[str, Any]:
    exchange = exchange_with(body, endpoint)  # type: ignore[arg-type]
    await ReadRequest().enter(exchange)
    change_request(exchange, changes)
    for name, value in exchange.body.items():
        assert getattr(exchange.request, name) == value
    return exchange.body


def parameters(**values: Any) -> Action:  # noqa: ANN401
    return Action(parameters=Parameters(**values))


async def test_strip_then_set_then_clamp() -> None:
    change = parameters(
        strip=["logit_bias", "temperature"],
        set=SetParameters(temperature=1.5, seed=7),
        clamp=Clamp(temperature=Bounds(max=1.0)),
    )
    body = await changed({**CHAT, "logit_bias": {"1": 2.0}, "temperature": 0.2}, change)
    assert body == {**CHAT, "temperature": 1.0, "seed": 7}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"max_tokens": 100}),
        ({"max_tokens": 50}, {"max_tokens": 50}),
        ({"max_tokens": 500}, {"max_tokens": 100}),
        ({"max_completion_tokens": 500}, {"max_completion_tokens": 100}),
        ({"max_tokens": 2}, {"max_tokens": 10}),
    ],
)
async def test_a_limit_of_tokens_holds_for_both_fields_and_by_default(
    asked: dict[str, int], expected: dict[str, int]
) -> None:
    change = parameters(clamp=Clamp(max_tokens=Bounds(min=10, max=100)))
    assert await changed({**CHAT, **asked}, change) == {**CHAT, **expected}


async def test_setting_a_limit_replaces_both_fields() -> None:
    change = parameters(set=SetParameters(max_tokens=5))
    assert await changed({**CHAT, "max_completion_tokens": 9}, change) == {**CHAT, "max_tokens": 5}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], [{"role": "system", "content": "Be brief."}, USER]),
        (
            [{"role": "system", "content": "Rhyme."}, USER],
            [{"role": "system", "content": "Rhyme.\n\nBe brief."}, USER],
        ),
        (
            [{"role": "developer", "content": [{"type": "text", "text": "Rhyme."}]}, USER],
            [
                {
                    "role": "developer",
                    "content": [{"type": "text", "text": "Rhyme."}, {"type": "text", "text": "Be brief."}],
                },
                USER,
            ],
        ),
    ],
)
async def test_a_system_text_follows_the_clients(
    messages: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    body = await changed({"model": "auto", "messages": messages}, Action(system="Be brief."))
    assert body["messages"] == expected


async def test_completions_have_no_system_message() -> None:
    body = {"model": "auto", "prompt": "hi"}
    changes = (Action(system="x"), parameters(set=SetParameters(reasoning_effort="low")))
    assert await changed(body, *changes, endpoint="completions") == body


async def test_without_changes_the_request_is_the_same_object() -> None:
    exchange = exchange_with(CHAT)
    await ReadRequest().enter(exchange)
    request = exchange.request
    assert isinstance(request, ChatRequest)
    change_request(exchange, [parameters(clamp=Clamp(temperature=Bounds(max=1.0)))])
    assert exchange.request is request


@pytest.mark.parametrize("kind", ["engine", "upstream"])
def test_time_limits(kind: Kind) -> None:
    model = ServedModel("m", kind, FakeProvider(), TimeLimits(30, 20, 60))
    found = adapted(model, [Action(timeouts=Timeouts(first_token_s=1, total_s=5))])
    assert found.limits == TimeLimits(1, 20, 5)
    assert adapted(model, [Action(system="x")]) is model


@pytest.mark.parametrize(("asked", "expected"), [({}, 100), ({"thinking_token_budget": 5}, 5)])
async def test_a_budget_for_thinking_holds_by_default_in_chats_only(
    asked: dict[str, int], expected: int
) -> None:
    change = parameters(clamp=Clamp(thinking_token_budget=Bounds(max=100)))
    assert (await changed({**CHAT, **asked}, change))["thinking_token_budget"] == expected
    completion = {"model": "m", "prompt": "hi"}
    assert await changed(completion, change, endpoint="completions") == completion
