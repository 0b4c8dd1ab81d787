"""The highest cost of a request is set aside before its model is called, and returns however it ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from msgspec import structs

from gateway.accounting.accounts import MemoryAccounts
from gateway.accounting.admission import Admission, Cost
from gateway.accounting.ledger import Ledger
from gateway.answer import Delta
from gateway.auth import ANONYMOUS
from gateway.errors import RateLimited, ServerError
from gateway.exchange.exchange import Escalation, Exchange
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.pipeline.stages.reserve import LONG_ANSWER, Reserve
from gateway.providers.fake import FakeProvider, TextCall
from gateway.routing.memory import USUAL_ANSWER_TOKENS, RoutingMemory
from gateway.routing.other_models import OtherModels
from gateway.settings import Settings
from gateway.web.deadlines import TimeLimits
from gateway.wiring.app import build_app
from policies.choose import BestOf, Cascade
from policies.document import EngineModel, ModelEntry, Policies, Price
from policies.releases import Capabilities
from policies.routes import Fallback, Rule
from policies.routing import Choice
from policies.tenants import Limits, Tier
from tests.gateway.conftest import http_client
from tests.gateway.pipeline.exchanges import exchange_with, routed_to

FREE, PROMPT = 10**9, "x" * 40  # 10 tokens
USUAL = LONG_ANSWER * round(USUAL_ANSWER_TOKENS)


def served(name: str, usd_per_million: float, context: int | None = None) -> ServedModel:
    price = Price(input_usd_per_million_tokens=usd_per_million, output_usd_per_million_tokens=usd_per_million)
    limits = TimeLimits(None, None, 60)
    capabilities = Capabilities(context_tokens=context)
    return ServedModel(name, "engine", FakeProvider(), limits, price=price, capabilities=capabilities)


def thinking() -> ServedModel:
    """Reasoning costs five times the text, each call a ten-thousandth of a USD."""
    model = served("thinks", 1.0)
    assert model.price is not None
    price = structs.replace(model.price, reasoning_usd_per_million_tokens=5.0, request_usd=1e-4)
    return replace(model, price=price)


MODELS = ModelTable(
    [thinking(), served("m", 1.0), served("n", 3.0), served("o", 2.0), served("short", 1.0, 50)], {}
)


class Stage:
    """The stage under limits, with one exchange after another."""

    def __init__(self, **limits: Any) -> None:  # noqa: ANN401
        self.ledger = Ledger()
        policies = Policies(tiers={"default": Tier(limits=Limits(**limits))})
        self.memory = RoutingMemory(ledger=self.ledger)
        self.admission = Admission(policies, self.ledger)
        self.stage = Reserve(self.admission, OtherModels(MODELS, 3), self.memory)

    async def enter(
        self, endpoint: str = "chat", rules: object = None, num_answers: int = 1, **fields: object
    ) -> Exchange:
        text: dict[str, object] = {"input": PROMPT}
        if endpoint != "embeddings":
            chat = [{"role": "user", "content": PROMPT}]
            text = {"messages": chat} if endpoint == "chat" else {"prompt": PROMPT}
        model = str(fields.pop("model", "m"))
        body = {"model": model, **text, **fields}
        exchange = exchange_with(body, endpoint)
        await ReadRequest().enter(exchange)
        exchange.admitted = await self.admission.enter(
            ANONYMOUS, num_answers=num_answers, is_admitted=not num_answers
        )
        changes = (Rule(fallback=rules),) if isinstance(rules, Fallback) else ()
        routed = routed_to(MODELS.resolve(model), Choice("", changes=changes))
        if isinstance(rules, Cascade | BestOf):
            following = tuple(name for name in rules.models if name != model)
            routed = type(routed)(
                choice=routed.choice,
                reason="",
                model=routed.model,
                cascade=Escalation(rules, following, "", False),
            )
        exchange.route(routed)
        await self.stage.enter(exchange)
        return exchange

    @property
    def held(self) -> Cost:
        assert isinstance(self.ledger.accounts, MemoryAccounts)
        found = self.ledger.accounts.held
        tenant = f"tenant:{ANONYMOUS.tenant}"
        return Cost(found[f"tokens_per_minute:{tenant}"], found[f"usd_per_day:{tenant}"] / 1e9)


def usd(tokens: float, per_million: float) -> float:
    return pytest.approx(tokens * per_million / 1e6)  # type: ignore[no-any-return]


CASES: list[tuple[dict[str, Any], float, float]] = [
    ({"max_tokens": 30}, 40, 40),
    ({"max_completion_tokens": 30}, 40, 40),
    ({"max_tokens": 30, "n": 4}, 130, 130),
    ({}, 10 + USUAL, 10 + USUAL),
    ({"model": "short"}, 50, 50),
    ({"model": "thinks", "max_tokens": 30}, 40, 10 + 150 + 100),
    ({"endpoint": "completions"}, 26, 26),
    ({"endpoint": "completions", "prompt": [PROMPT, PROMPT], "max_tokens": 5, "n": 2}, 40, 40),
    ({"endpoint": "embeddings"}, 10, 10),
    ({"max_tokens": 30, "rules": Cascade(models=["m", "n", "o"])}, 120, 40 + 120 + 80),
    ({"max_tokens": 30, "rules": BestOf(models={"m": 2, "o": 1})}, 120, 80 + 80),
    ({"max_tokens": 30, "rules": Fallback(any=["o", "n", "gone"])}, 40, 120),
    ({"max_tokens": 30, "rules": Fallback(timeout=["o"])}, 40, 80),
]


@pytest.mark.parametrize(("request_of", "tokens", "price"), CASES)
async def test_the_highest_cost(request_of: dict[str, Any], tokens: float, price: float) -> None:
    stage = Stage(tokens_per_minute=FREE, usd_per_day=FREE)
    exchange = await stage.enter(**request_of)
    assert stage.held == Cost(tokens, usd(price, 1.0))
    stage.admission.settle(exchange.admitted)
    assert stage.held == Cost()


async def test_the_mean_of_the_models_answers_counts() -> None:
    stage = Stage(tokens_per_minute=FREE)
    stage.memory.answer_tokens.observe("m", 500)
    await stage.enter()
    assert stage.held.tokens == 10 + LONG_ANSWER * 500


async def test_what_the_gateway_admitted_before_is_set_aside_too() -> None:
    """A background response's request to the gateway itself."""
    stage = Stage(tokens_per_minute=100)
    await stage.enter(max_tokens=60, num_answers=0)
    with pytest.raises(RateLimited):
        await stage.enter(max_tokens=60, num_answers=0)


async def test_a_refused_request_holds_nothing() -> None:
    stage = Stage(tokens_per_minute=100)
    first = await stage.enter(max_tokens=60)
    with pytest.raises(RateLimited):
        await stage.enter(max_tokens=60)
    assert stage.held.tokens == 70
    stage.admission.settle(first.admitted)
    await stage.enter(max_tokens=60)


async def scripted(call: TextCall) -> AsyncIterator[Delta]:
    """Pieces up to the request's limit; the prompt may end them early, with an error or never."""
    limit = call.request.token_limit or 10
    text = str(call.body["messages"][-1]["content"])
    for number in range(limit - 1):
        await asyncio.sleep(0)
        if "fail" in text and number == 1:
            raise ServerError("broken")
        yield Delta(0, "x")
    if "hang" in text:
        await asyncio.Event().wait()
    yield Delta(0, "x", finish_reason="stop")


def app_of(provider: FakeProvider, limits: Limits) -> Any:  # noqa: ANN401
    price = Price(input_usd_per_million_tokens=1e4, output_usd_per_million_tokens=1e4)  # 0.01 USD a token
    models = {"m": ModelEntry(engine=EngineModel(checkpoint="/none"), price=price)}
    policies = Policies(models=models, tiers={"default": Tier(limits=limits)}, version="v1")
    return build_app(Settings(), policies, {"m": provider})


async def ask(http: httpx.AsyncClient, text: str = "hi", **fields: object) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 9, **fields}
    return (await http.post("/v1/chat/completions", json=body)).status_code


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "limits",
    [
        Limits(requests_per_minute=50),
        Limits(tokens_per_minute=500),
        Limits(usd_per_day=5.0),
        Limits(concurrent_requests=50),
    ],
    ids=["requests", "tokens", "USD", "concurrency"],
)
async def test_200_at_the_same_time_do_not_pass_a_limit_for_50(limits: Limits, stream: bool) -> None:
    """10 tokens each, which is 0.1 USD."""
    provider = FakeProvider(scripted, prompt_tokens=1)
    app = app_of(provider, limits)
    async with app.lifespan_context(app), http_client(app) as http:
        statuses = Counter(await asyncio.gather(*(ask(http, stream=stream) for _ in range(200))))
        assert statuses == {200: 50, 429: 150} and len(provider.asked) == 50
        assert await ask(http) == (200 if limits.concurrent_requests else 429)


async def test_all_returns_after_errors_and_disconnects() -> None:
    provider = FakeProvider(scripted, prompt_tokens=1)
    app = app_of(provider, Limits(tokens_per_minute=1000))
    async with app.lifespan_context(app), http_client(app) as http:
        await asyncio.gather(*(ask(http, "fail") for _ in range(20)))
        waiting = [asyncio.create_task(ask(http, "hang")) for _ in range(20)]
        while len(provider.asked) < 40:
            await asyncio.sleep(0.001)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        while provider.num_ended < 40:
            await asyncio.sleep(0.001)
        answer = await http.post(
            "/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
        )
        assert answer.status_code == 200
        # What has really been used is in the window, and nothing is held beside this request.
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 1000 - 40 * 10


async def test_a_request_that_can_never_fit_says_so() -> None:
    app = app_of(FakeProvider(scripted), Limits(tokens_per_minute=100))
    async with app.lifespan_context(app), http_client(app) as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
        refused = await http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 429 and "retry-after" not in refused.headers
    assert "may cost 201 tokens, more than the limit of 100 tokens per minute" in refused.text
