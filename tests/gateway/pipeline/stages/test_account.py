"""Each generation is paid once, in any order of leaving, and nothing that was used is free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gateway.accounting.ledger import Ledger
from gateway.answer import Delta, Embedded, Generated, Usage, close_answer
from gateway.auth import InternalCaller, KeyRing
from gateway.errors import UpstreamFailed
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline, PipelineParts
from gateway.pipeline.stages.account import Account
from gateway.providers.base import ModelCall
from gateway.providers.fake import FakeProvider, TextCall
from gateway.requests.types import ChatRequest
from gateway.response_cache.settings import CacheSettings
from gateway.routing.memory import RoutingMemory
from gateway.web.deadlines import TimeLimits
from policies.cache import CacheRules
from policies.document import Policies, Price
from tests.gateway.pipeline.exchanges import exchange_with, response_cache

KEYS = [f"sk-{number}" for number in range(4)]
PROMPT_TOKENS = 7
LENGTH = 5
PRICE = Price(input_usd_per_million_tokens=1e6, output_usd_per_million_tokens=1e6)
"""One USD for each token."""


class Gateway:
    """A pipeline whose model gives one token per permit; all tenants share its cache."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.usages: list[Usage] = []  # of each call of the model
        self.permits = asyncio.Semaphore(0)
        self.fails = False
        self.num_waiting = 0  # generations that wait for a permit
        provider = _Kept(self)
        cache = CacheSettings.of(CacheRules(mode="exact", scope="shared"))
        model = ServedModel("m", "engine", provider, TimeLimits(None, None, 60), cache=cache, price=PRICE)
        self.keys = KeyRing(KEYS)
        parts = PipelineParts(memory=RoutingMemory(ledger=self.ledger))
        models = ModelTable([model], {"auto": "m"})
        self.pipeline = Pipeline(self.keys, models, response_cache(), Policies(), parts)

    async def script(self, call: TextCall) -> AsyncIterator[Delta]:
        for number in range(LENGTH):
            self.num_waiting += 1
            try:
                await self.permits.acquire()
            finally:
                self.num_waiting -= 1
            if self.fails:
                raise UpstreamFailed("broken")
            yield Delta(0, "x", finish_reason="stop" if number == LENGTH - 1 else None)

    async def request(self, key: str) -> None:
        """One request from its beginning to its end, as an endpoint does it."""
        exchange = self.exchange(key)
        try:
            await self.pipeline.run(exchange)
            assert isinstance(exchange.answer, Generated)
            async for _ in exchange.answer.deltas:
                pass
        finally:
            try:
                await close_answer(exchange.answer)
            finally:
                self.pipeline.settle(exchange)

    def start(self, key: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.request(key))

    def exchange(self, key: str) -> Exchange:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        return exchange_with(body, authorization=f"Bearer {key}")

    def paid(self, key: str) -> int:
        return round(self.ledger.tenant_usd(self.keys.caller(f"Bearer {key}", None).tenant))

    @property
    def paid_by_all(self) -> list[int]:
        return [self.paid(key) for key in KEYS]

    @property
    def used(self) -> int:
        return sum(usage.prompt_tokens + usage.completion_tokens for usage in self.usages)


class _Kept(FakeProvider):
    """Keeps the usage of its answers."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.script, prompt_tokens=PROMPT_TOKENS)
        self._gateway = gateway

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated:
        answer = await super().chat(call)
        self._gateway.usages.append(answer.usage)
        return answer


async def settled() -> None:
    """Let every task run until it waits for something that the test does."""
    for _ in range(40):
        await asyncio.sleep(0)


async def left(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def ended(*tasks: asyncio.Task[None]) -> None:
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)


async def three(gateway: Gateway) -> list[asyncio.Task[None]]:
    """Three tenants' requests that share a generation, which has given two tokens."""
    tasks = []
    for key in KEYS[:3]:
        tasks.append(gateway.start(key))
        await settled()
    for _ in range(2):
        gateway.permits.release()
    await settled()
    assert len(gateway.usages) == 1
    return tasks


async def finish(gateway: Gateway) -> None:
    for _ in range(LENGTH):
        gateway.permits.release()
    await settled()


async def test_the_leader_pays() -> None:
    gateway = Gateway()
    tasks = await three(gateway)
    await finish(gateway)
    await ended(*tasks)
    assert gateway.paid_by_all == [PROMPT_TOKENS + LENGTH, 0, 0, 0]
    await gateway.request(KEYS[3])  # from the cache
    assert gateway.paid_by_all == [PROMPT_TOKENS + LENGTH, 0, 0, 0]


async def test_the_first_one_left_pays_for_a_leader_who_leaves() -> None:
    gateway = Gateway()
    leader, second, third = await three(gateway)
    await left(leader)
    assert gateway.paid_by_all == [0, 0, 0, 0]  # it is not over
    await finish(gateway)
    await ended(second, third)
    assert gateway.paid_by_all == [0, PROMPT_TOKENS + LENGTH, 0, 0]


async def test_a_leader_is_not_charged_twice_when_others_leave() -> None:
    gateway = Gateway()
    leader, second, third = await three(gateway)
    await left(third, second)
    assert gateway.paid_by_all == [0, 0, 0, 0]
    await finish(gateway)
    await ended(leader)
    assert gateway.paid_by_all == [PROMPT_TOKENS + LENGTH, 0, 0, 0]


async def test_the_last_one_to_leave_pays_for_what_there_was() -> None:
    gateway = Gateway()
    leader, second, third = await three(gateway)
    await left(leader, third)
    await left(second)
    assert gateway.paid_by_all == [0, PROMPT_TOKENS + 2, 0, 0] and gateway.num_waiting == 0


async def test_an_error_is_paid_once() -> None:
    gateway = Gateway()
    tasks = await three(gateway)
    gateway.fails = True
    gateway.permits.release()
    await ended(*tasks)
    assert gateway.paid_by_all == [PROMPT_TOKENS + 2, 0, 0, 0]


async def test_all_leave_at_once() -> None:
    gateway = Gateway()
    await left(*await three(gateway))
    assert sorted(gateway.paid_by_all) == [0, 0, 0, PROMPT_TOKENS + 2]


@pytest.mark.parametrize("settles_first", [0, 1])
async def test_the_order_of_settling_does_not_matter(settles_first: int) -> None:
    gateway = Gateway()
    exchanges = [gateway.exchange(key) for key in KEYS[:2]]
    for exchange in exchanges:
        await gateway.pipeline.run(exchange)
    await settled()
    await finish(gateway)
    first, second = exchanges[settles_first], exchanges[1 - settles_first]
    for exchange in (first, second):
        await close_answer(exchange.answer)
        gateway.pipeline.settle(exchange)
    assert gateway.paid_by_all == [PROMPT_TOKENS + LENGTH, 0, 0, 0]


@pytest.mark.parametrize(("label", "factor"), [("batch", 0.5), ("", 1.0)])
async def test_a_line_of_a_batch_costs_its_factor(label: str, factor: float) -> None:
    ledger, exchange = Ledger(), exchange_with({})
    exchange.asked = structs.replace(exchange.asked, caller=InternalCaller("t", 1, label))
    price = structs.replace(PRICE, batch_factor=0.5)
    exchange.model = ServedModel("m", "engine", FakeProvider(), TimeLimits(None, None, 60), price=price)
    exchange.answer = Embedded([], Usage(PROMPT_TOKENS, LENGTH))
    Account(ledger).settle(exchange)
    assert exchange.charged.usd == factor * (PROMPT_TOKENS + LENGTH)
    assert ledger.model_usd("m") == exchange.charged.usd


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, len(KEYS) - 1)),
        st.tuples(st.just("leave"), st.integers(0, 11)),
        st.tuples(st.just("token"), st.integers(1, 3)),
        st.tuples(st.just("fail"), st.just(1)),
        st.tuples(st.just("wait"), st.integers(1, 9)),
    ),
    max_size=30,
)


async def take(gateway: Gateway, tasks: list[asyncio.Task[None]], step: str, number: int) -> None:
    """One step of a run."""
    if step == "join":
        gateway.fails = False
        tasks.append(gateway.start(KEYS[number]))
    elif step == "leave" and number < len(tasks):
        tasks[number].cancel()
    elif step == "wait":
        for _ in range(number):
            await asyncio.sleep(0)
    elif step in ("token", "fail"):
        gateway.fails = step == "fail"
        for _ in range(number):
            gateway.permits.release()


@given(steps=STEPS, all_leave=st.booleans())
@settings(deadline=None, max_examples=150)
def test_any_order_of_joining_leaving_and_ending_is_paid_once(
    *, steps: list[tuple[str, int]], all_leave: bool
) -> None:
    async def run() -> None:
        gateway = Gateway()
        tasks: list[asyncio.Task[None]] = []
        for step, number in steps:
            await take(gateway, tasks, step, number)
        if all_leave:
            await left(*tasks)
        for _ in range(LENGTH * len(tasks)):
            gateway.permits.release()
        await ended(*tasks)
        assert sum(gateway.paid_by_all) == gateway.used
        assert gateway.ledger.model_usd("m") == pytest.approx(gateway.used)

    asyncio.run(run())
