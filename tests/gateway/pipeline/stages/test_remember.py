"""look_up and remember by meaning, with a scripted encoder and verifier."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy import float32
from numpy.typing import NDArray

from cache.evidence import Verdict
from cache.memory_store import MemoryStore
from cache.semantic_cache import SemanticCache
from gateway.answer import Delta, Generated
from gateway.auth import InternalCaller, KeyRing
from gateway.errors import ApiError, Unavailable
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline
from gateway.providers.base import ModelCall
from gateway.providers.fake import FakeProvider, TextCall
from gateway.response_cache.hit_token import read_hit
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.sampling import Sampler
from gateway.response_cache.settings import CacheSettings
from gateway.response_cache.use import CacheUse
from gateway.web.deadlines import TimeLimits
from policies.cache import CacheRules
from policies.document import Policies
from policies.routes import Fallback, Route
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
        self.model = model
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

    async def start(
        self,
        text: str,
        directives: str = "",
        caller: InternalCaller | None = None,
        key: str = "",
        **fields: Any,  # noqa: ANN401
    ) -> Exchange:
        """Run the stages; the answer is still to be read."""
        exchange = exchange_of()
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}

        async def read_body() -> bytes:
            return msgspec.json.encode(body)

        exchange.asked = msgspec.structs.replace(
            exchange.asked,
            caller=caller,
            authorization=f"Bearer {key}",
            read_body=read_body,
            cache_headers=(directives, ""),
        )
        try:
            await self.pipeline.run(exchange)
        except ApiError:
            self.pipeline.settle(exchange)
            raise
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


def paused_gateway(*keys: str) -> tuple[Gateway, asyncio.Event]:
    """Its model gives one delta and waits for the event."""
    go_on = asyncio.Event()

    async def script(call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "first ")
        await go_on.wait()
        yield Delta(0, "second", finish_reason="stop")

    gateway = Gateway()
    gateway.provider = FakeProvider(script)
    model = replace(gateway.model, provider=gateway.provider)
    gateway.pipeline = Pipeline(KeyRing(keys), ModelTable([model], {}), gateway.cache)
    return gateway, go_on


async def test_a_request_of_the_same_meaning_joins_in_the_middle_of_a_stream() -> None:
    gateway, go_on = paused_gateway()
    leader = await gateway.start("How high is the tower?")
    assert isinstance(leader.answer, Generated)
    assert (await anext(aiter(leader.answer.deltas))).text == "first "
    follower = await gateway.start("What is the height of the tower?")
    assert follower.response_headers["x-penstock-cache"] == "shared"
    assert follower.response_headers["x-penstock-cache-probability"] == "1.000"
    key = leader.response_headers["x-penstock-cache-entry"]
    assert follower.response_headers["x-penstock-cache-entry"] == key
    go_on.set()
    assert [delta.text for delta in await read(follower)] == ["first ", "second"]
    assert len(gateway.provider.asked) == 1 and len(gateway.answers.store) == 1


@pytest.mark.parametrize(
    ("text", "directives"), [("What is the height of my order?", ""), ("How tall is it?", "no-store")]
)
async def test_what_is_personal_or_private_joins_no_other(text: str, directives: str) -> None:
    gateway, go_on = paused_gateway()
    await gateway.start("How high is the tower?")
    other = await gateway.start(text, directives)
    assert other.response_headers["x-penstock-cache"] != "shared" and len(gateway.provider.asked) == 2
    go_on.set()


@pytest.mark.parametrize("wall", ["tenant", "system", "history", "tools", "temperature"])
async def test_nothing_joins_through_a_wall(wall: str) -> None:
    gateway, go_on = paused_gateway("sk-alice", "sk-bob")
    asked = [{"role": "user", "content": "What is the height of the tower?"}]
    await gateway.start("How high is the tower?", key="sk-alice")
    changes: dict[str, dict[str, Any]] = {
        "tenant": {},
        "system": {"messages": [{"role": "system", "content": "Be brief."}, *asked]},
        "history": {"messages": [*asked, {"role": "assistant", "content": "9 m"}, *asked]},
        "tools": {"tools": [{"type": "function", "function": {"name": "measure"}}]},
        "temperature": {"temperature": 0.5},
    }
    key = "sk-bob" if wall == "tenant" else "sk-alice"
    other = await gateway.start(asked[0]["content"], key=key, **changes[wall])
    assert other.response_headers["x-penstock-cache"] == "miss" and len(gateway.provider.asked) == 2
    go_on.set()


async def test_requests_of_the_same_meaning_at_once_are_one_generation() -> None:
    gateway, go_on = paused_gateway()
    gateway.may_encode.clear()
    wordings = ("How high is the tower?", "How tall is the tower?", "What is the tower's height?")
    starts = [asyncio.create_task(gateway.start(text)) for text in wordings for _ in range(3)]
    while gateway.num_encoded < len(wordings):
        await asyncio.sleep(0)
    gateway.may_encode.set()
    exchanges = await asyncio.wait_for(asyncio.gather(*starts), 10)
    go_on.set()
    keys = {each.response_headers["x-penstock-cache-entry"] for each in exchanges}
    assert len(keys) == 1
    texts = {"".join(delta.text for delta in await read(each)) for each in exchanges}
    assert texts == {"first second"} and len(gateway.provider.asked) == 1


async def test_near_misses_at_once_are_generations_of_their_own() -> None:
    gateway, go_on = paused_gateway()
    gateway.may_encode.clear()
    texts = ("What is 5 - 17?", "What is 17 - 5?", "What is -5 + 17?", "Is it 5 am?", "Is it 5 pm?")
    starts = [asyncio.create_task(gateway.start(text)) for text in texts for _ in range(3)]
    while gateway.num_encoded < len(texts):
        await asyncio.sleep(0)
    gateway.may_encode.set()
    exchanges = await asyncio.wait_for(asyncio.gather(*starts), 10)
    go_on.set()
    keys = [each.response_headers["x-penstock-cache-entry"] for each in exchanges]
    assert len(set(keys)) == len(texts) and all(keys.count(key) == 3 for key in keys)
    for each in exchanges:
        await read(each)
    assert len(gateway.provider.asked) == len(texts)


async def test_a_long_question_is_searched_for_personal_data_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: dict[str, bool] = {}
    is_stored = CacheUse.is_stored

    def noted(use: CacheUse, ends: Sequence[str]) -> bool:
        threads[use.question.text[:4]] = threading.current_thread() is threading.main_thread()
        return is_stored(use, ends)

    monkeypatch.setattr(CacheUse, "is_stored", noted)
    gateway = Gateway()
    for text in ("DE12 " * 20_000, "What is the height of the tower?"):
        await read(await gateway.start(text))
    while len(gateway.answers.store) < 2:
        await asyncio.sleep(0)
    assert threads == {"DE12": False, "What": True}
    assert (await gateway.start("DE12 " * 20_000)).response_headers["x-penstock-cache"] == "exact"


async def test_code_is_not_encoded_for_the_cache() -> None:
    gateway = Gateway()
    for text in ("What does `ls -l` print?", "What does `ls -L` print?", "Wie alt ist der Turm in Pisa?"):
        exchange = await gateway.start(text)
        await read(exchange)
        assert exchange.response_headers["x-penstock-cache"] == "miss"
    assert gateway.num_encoded == 0


async def test_a_follower_by_meaning_asks_itself_when_its_leader_fails() -> None:
    gateway = Gateway()
    is_asked, go_on = asyncio.Event(), asyncio.Event()

    async def refuse(call: ModelCall[Any]) -> Generated:
        is_asked.set()
        await go_on.wait()
        raise Unavailable("away")

    chat = gateway.provider.chat
    gateway.provider.chat = refuse  # type: ignore[method-assign]
    leader = asyncio.create_task(gateway.start("How high is the tower?"))
    await asyncio.wait_for(is_asked.wait(), 5)
    follower = asyncio.create_task(gateway.start("What is the height of the tower?"))
    while gateway.num_encoded < 2:
        await asyncio.sleep(0)
    gateway.provider.chat = chat  # type: ignore[method-assign]
    go_on.set()
    with pytest.raises(Unavailable):
        await leader
    assert (await asyncio.wait_for(follower, 5)).response_headers["x-penstock-cache"] == "miss"
    assert len(gateway.provider.asked) == 1


async def test_nobody_waits_for_the_answer_of_a_model_that_took_over() -> None:
    async def fails(call: TextCall) -> AsyncIterator[Delta]:
        raise Unavailable("away")
        yield

    gateway = Gateway()
    first = replace(gateway.model, provider=FakeProvider(fails))
    models = ModelTable([first, replace(gateway.model, name="other")], {"auto": "m"})
    policies = Policies(routes={"auto": Route(model="m", fallback=Fallback(any=["other"]))})
    gateway.pipeline = Pipeline(KeyRing([]), models, gateway.cache, policies)
    leader = await gateway.start("One?", model="auto")
    follower = await asyncio.wait_for(gateway.start("One?", model="auto"), 5)
    for exchange in (leader, follower):
        assert exchange.model is not None and exchange.model.name == "other"
        await read(exchange)
        gateway.pipeline.settle(exchange)


async def test_an_upstreams_stream_is_replayed_to_those_alone_who_asked_for_one_like_it() -> None:
    gateway = Gateway()
    outcomes = []
    for options in ({"include_usage": True}, None, {"include_usage": True}, None):
        exchange = await gateway.start("One?", stream=True, stream_options=options)
        await read(exchange)
        gateway.pipeline.settle(exchange)
        outcomes.append(exchange.response_headers["x-penstock-cache"])
    assert outcomes == ["miss", "miss", "exact", "exact"]


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
    assert list(gateway.answers.store.evidence.section("m").verdicts) == [("default", True)]


async def test_a_rejected_question_is_asked_of_the_model() -> None:
    gateway = Gateway()
    await gateway.ask("How high is the tower?")
    hit = await gateway.start("What is the height of the tower?")
    entry = await gateway.answers.entry(bytes.fromhex(hit.response_headers["x-penstock-cache-entry"]))
    named = read_hit(hit.response_headers["x-penstock-cache-question"], KeyRing(()))
    assert entry is not None and named is not None
    assert (named.entry, named.tenant) == (entry.key, "default")
    gateway.answers.judge(entry, named.question, Verdict("m", 0.01, False, "default"))
    assert await gateway.ask("What is the height of the tower?") != "semantic"


async def test_the_lines_of_batches_are_not_compared_by_meaning() -> None:
    gateway = Gateway()
    line = InternalCaller("default", priority=1)
    assert await gateway.ask("How high is the tower?") == "miss"
    num_encoded = gateway.num_encoded
    assert await gateway.ask("How tall is the tower?", caller=line) == "miss"
    assert await gateway.ask("How tall is the tower?", caller=line) == "exact"
    assert gateway.num_encoded == num_encoded
