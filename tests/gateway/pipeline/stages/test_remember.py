"""look_up and remember by meaning, with a scripted encoder and verifier."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from numpy import float32
from numpy.typing import NDArray

from cache.memory_store import MemoryStore
from cache.semantic_cache import SemanticCache
from cache.settings import CacheSettings
from gateway.answer import Generated
from gateway.auth import InternalCaller, KeyRing
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline
from gateway.providers.fake import FakeProvider
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.sampling import Sampler
from gateway.web.deadlines import TimeLimits
from policies.cache import CacheRules
from tests.cache.verifiers import ScriptedVerifier
from tests.gateway.pipeline.exchanges import exchange_of


class Gateway:
    """A pipeline with one model."""

    def __init__(self, verified_share: float = 0.0) -> None:
        self.provider = FakeProvider()
        self.num_encoded = 0
        self.may_encode = asyncio.Event()
        self.may_encode.set()
        self.answers = SemanticCache(MemoryStore(1 << 20, 1 << 20), ScriptedVerifier(others=1.0))
        rules = CacheSettings.of(CacheRules(mode="semantic", verified_share=verified_share))
        model = ServedModel("m", "upstream", self.provider, TimeLimits(None, None, 60), cache=rules)
        self.verdicts: list[str] = []
        sampler = Sampler(self._embed, lambda model, verdict: self.verdicts.append(verdict))
        self.cache = ResponseCache(self.answers, self._embed, sampler)
        self.pipeline = Pipeline(KeyRing([]), ModelTable([model], {"auto": "m"}), self.cache)

    async def _embed(self, text: str) -> NDArray[float32]:
        self.num_encoded += 1
        await self.may_encode.wait()
        vector = np.zeros(384, float32)
        vector[0] = 1.0
        return vector

    async def start(self, text: str, directives: str = "", caller: InternalCaller | None = None) -> Exchange:
        """Run the stages; the answer is still to be read."""
        exchange = exchange_of()
        exchange.caller = caller
        body = f'{{"model": "m", "messages": [{{"role": "user", "content": "{text}"}}]}}'

        async def read_body() -> bytes:
            return body.encode()

        exchange.read_body = read_body
        exchange.cache_headers = (directives, "")
        await self.pipeline.run(exchange)
        return exchange

    async def ask(self, text: str, directives: str = "", caller: InternalCaller | None = None) -> str:
        """The outcome, when the whole answer was read."""
        exchange = await self.start(text, directives, caller)
        await read(exchange)
        self.pipeline.settle(exchange)
        return exchange.response_headers["x-penstock-cache"]


async def read(exchange: Exchange) -> list[Any]:
    assert isinstance(exchange.answer, Generated)
    return [delta async for delta in exchange.answer.deltas]


async def test_a_refreshed_answer_is_found_by_meaning() -> None:
    gateway = Gateway()
    assert await gateway.ask("How high is the tower?", "refresh") == "bypass"
    assert gateway.num_encoded == 1
    assert await gateway.ask("What is the height of the tower?") == "semantic"
    assert len(gateway.provider.asked) == 1


async def test_a_refresh_does_not_wait_for_its_encoding() -> None:
    gateway = Gateway()
    gateway.may_encode.clear()
    assert await gateway.ask("How high is the tower?", "refresh") == "bypass"
    assert not len(gateway.answers.store)
    gateway.may_encode.set()
    while not len(gateway.answers.store):
        await asyncio.sleep(0)
    assert await gateway.ask("What is the height of the tower?") == "semantic"


async def test_a_semantic_hit_lets_equal_requests_go_on_at_once() -> None:
    gateway = Gateway()
    await gateway.ask("How high is the tower?")
    first = await gateway.start("What is the height of the tower?")
    second = await asyncio.wait_for(gateway.start("What is the height of the tower?"), 5)
    assert [each.response_headers["x-penstock-cache"] for each in (first, second)] == ["semantic"] * 2
    assert await read(first) == await read(second)


async def test_a_miss_encodes_once() -> None:
    gateway = Gateway()
    assert await gateway.ask("How high is the tower?") == "miss"
    assert gateway.num_encoded == 1


async def test_sampled_hits_are_answered_again_and_judged() -> None:
    gateway = Gateway(verified_share=0.5)
    gateway.cache.sampler._random.random = lambda: 0.0  # type: ignore[method-assign]
    await gateway.ask("How high is the tower?")
    assert await gateway.ask("What is the height of the tower?") == "semantic"
    while not gateway.verdicts:
        await asyncio.sleep(0)
    assert gateway.verdicts == ["right"] and len(gateway.provider.asked) == 2
    assert list(gateway.answers.store.evidence.section("m").verdicts) == [True]


async def test_a_rejected_question_is_asked_of_the_model() -> None:
    gateway = Gateway()
    await gateway.ask("How high is the tower?")
    hit = await gateway.start("What is the height of the tower?")
    entry = await gateway.answers.entry(bytes.fromhex(hit.response_headers["x-penstock-cache-entry"]))
    question = bytes.fromhex(hit.response_headers["x-penstock-cache-question"])
    assert entry is not None
    gateway.answers.judge(entry, question, 0.01, is_right=False)
    assert await gateway.ask("What is the height of the tower?") != "semantic"


async def test_the_lines_of_batches_are_not_compared_by_meaning() -> None:
    gateway = Gateway()
    line = InternalCaller("default", priority=1)
    assert await gateway.ask("How high is the tower?") == "miss"
    num_encoded = gateway.num_encoded
    assert await gateway.ask("How tall is the tower?", caller=line) == "miss"
    assert await gateway.ask("How tall is the tower?", caller=line) == "exact"
    assert gateway.num_encoded == num_encoded
