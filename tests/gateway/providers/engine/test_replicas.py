"""Which replica gets a request: cached prefixes, queues, what was just sent; and all break ties alike."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from backend.errors import AdapterError, AdapterExists, EngineUnavailable
from backend.lora.info import AdapterInfo
from backend.server.engine_messages import Adapters, CachedPages, EngineStats, Hello
from backend.server.quote import PageIndex, PublishedPages, prefix_digests
from gateway.providers.engine.replicas import Prompt, Replicas
from router.log import Placement

HELLO = Hello("m", "/c", "rev", 4096, 100, 64, "cpu", "float32", kv_dtype="float32")
STATS = EngineStats(prefill_s_per_token=1e-4, decode_step_s=5e-3, max_running=8, admission_interval_s=0.2)


@dataclass(eq=False)
class Engine:
    """A client of an engine, as replicas see it."""

    pages: PublishedPages
    stats: EngineStats = field(default_factory=lambda: structs.replace(STATS))
    hello: Hello | None = HELLO
    ready: bool = True
    ready_since_s: float = 0.0
    may_sleep: bool = False
    is_remote: bool = False
    adapters: dict[str, AdapterInfo] = field(default_factory=dict)
    failure: Exception | None = None
    calls: list[str] = field(default_factory=list)

    on_adapters: Callable[[Adapters], None] | None = None

    place: str = "tls://engine:1"
    check: object = None
    on_hello: object = None
    on_lost: object = None

    async def load_adapter(
        self, name: str, path: str, *, replaces: bool, force: bool, digest: str = ""
    ) -> AdapterInfo:
        self.calls.append(f"{name} {digest}" if digest else name)
        if self.failure is not None:
            raise self.failure
        return AdapterInfo(name, "digest", "m", 8, 1000, path)

    async def unload_adapter(self, name: str) -> None:
        await self.load_adapter(f"-{name}", "", replaces=True, force=False)

    def greet(self) -> None:
        """Connect, with a list of the adapters that it has."""
        self.hello = structs.replace(HELLO)
        assert self.on_adapters is not None
        self.on_adapters(Adapters([*self.adapters.values()]))

    async def wait_ready(self, timeout_s: float) -> None:
        if not self.ready:
            await asyncio.sleep(timeout_s)
            raise EngineUnavailable("away")


def engines(count: int) -> list[Engine]:
    index = PageIndex()
    return [Engine(index.add_replica()) for _ in range(count)]


def replicas(found: list[Engine]) -> Replicas:
    return Replicas(found)  # type: ignore[arg-type]


def prompt(start: int = 0, length: int = 1_000, **more: object) -> Prompt:
    return Prompt([(start + 7 * number) % 97 for number in range(length)], **more)  # type: ignore[arg-type]


def publish(engine: Engine, held: Prompt) -> None:
    digests = prefix_digests(HELLO, held.token_ids, held.tenant_salt)
    engine.pages.update(CachedPages(published=b"".join(digests)))


def test_the_holder_of_a_prefix_gets_it_until_its_queue_costs_more() -> None:
    found = engines(4)
    chosen = replicas(found)
    publish(found[2], prompt())
    assert chosen.choose(prompt()) is found[2]
    quote = chosen.quote(prompt())
    assert quote is not None and quote.cached_tokens == 992
    found[2].stats = structs.replace(STATS, waiting_tokens=900)
    assert chosen.choose(prompt()) is found[2]
    found[2].stats = structs.replace(STATS, waiting_tokens=1_200)
    assert chosen.choose(prompt()) is not found[2]


def test_a_choice_among_some_counts_as_sent_there_too() -> None:
    found = engines(3)
    chosen = replicas(found)
    publish(found[0], prompt())
    assert chosen.choose_among(prompt(), [1, 2]) in found[1:]
    sent = Counter(found.index(chosen.choose_among(prompt(), [1, 2])) for _ in range(9))  # type: ignore[arg-type]
    assert sorted(sent.values()) == [4, 5] and 0 not in sent
    found[1].ready = False
    assert chosen.choose_among(prompt(), [1]) is None


def test_another_tenants_prefix_is_none() -> None:
    found = engines(2)
    publish(found[1], prompt(tenant_salt="a"))
    quotes = [replicas(found).quote(prompt(tenant_salt=tenant)) for tenant in "ab"]
    assert [quote and quote.cached_tokens for quote in quotes] == [992, 0]


def test_what_was_sent_counts_until_the_next_heartbeat() -> None:
    found = engines(2)
    chosen = replicas(found)
    sent = Counter(found.index(chosen.choose(prompt(0))) for _ in range(20))  # type: ignore[arg-type]
    assert sent == {0: 10, 1: 10}
    first = chosen.choose(prompt(0))
    for engine in found:
        engine.stats = structs.replace(STATS)
    assert chosen.choose(prompt(0)) is first


def test_all_gateways_send_a_cold_prefix_to_the_same_replica_and_prefixes_spread() -> None:
    one, two = replicas(engines(4)), replicas(engines(4))

    def number(gateway: Replicas, start: int) -> int:
        gateway.clients[0].stats = structs.replace(STATS)
        for engine in gateway.clients:
            engine.stats = structs.replace(STATS)
        return list(gateway.clients).index(gateway.choose(prompt(start)))

    chosen = [number(one, start) for start in range(97)]
    assert chosen == [number(two, start) for start in range(97)]
    assert min(Counter(chosen).values()) > 10 and len(Counter(chosen)) == 4
    assert len({number(one, start=5) for _ in range(9)}) == 1


@pytest.mark.parametrize("length", [1, 15, 16, 17])
def test_short_prompts_spread_too(length: int) -> None:
    found = replicas(engines(4))
    chosen = set()
    for start in range(97):
        for engine in found.clients:
            engine.stats = structs.replace(STATS)
        chosen.add(id(found.choose(prompt(start, length))))
    assert len(chosen) == 4


def test_one_that_has_measured_nothing_counts_as_the_slowest_and_gets_its_share() -> None:
    found = engines(3)
    chosen = replicas(found)
    found[1].stats = EngineStats(max_running=8)
    sent = Counter(found.index(chosen.choose(prompt(3))) for _ in range(30))  # type: ignore[arg-type]
    assert sent == {0: 10, 1: 10, 2: 10}


def test_before_any_has_measured_what_was_sent_counts() -> None:
    found = engines(3)
    for engine in found:
        engine.stats = EngineStats(max_running=8)
    chosen = replicas(found)
    sent = Counter(found.index(chosen.choose(prompt(3))) for _ in range(30))  # type: ignore[arg-type]
    assert sent == {0: 10, 1: 10, 2: 10}


def test_the_share_of_a_replica_that_has_just_come_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    found = engines(2)
    chosen = replicas(found)
    found[1].ready_since_s = 1_000.0
    shares = []
    for age_s in (0.0, 2.5, 5.0, 10.0):
        monkeypatch.setattr(time, "monotonic", lambda age_s=age_s: 1_000.0 + age_s)
        for engine in found:
            engine.stats = structs.replace(STATS)
        sent = Counter(found.index(chosen.choose(prompt())) for _ in range(40))  # type: ignore[arg-type]
        shares.append(sent[1])
    assert shares == sorted(shares) and 1 <= shares[0] <= 6 and shares[-1] == 20
    found[0].ready = False
    assert chosen.choose(prompt()) in found[1:]


def test_only_those_that_are_ready_and_have_the_adapter_get_a_request() -> None:
    found = engines(3)
    chosen = replicas(found)
    found[0].ready = False
    found[2].adapters["a"] = AdapterInfo("a", "digest", "m", 8, 1000, "/a")
    assert chosen.choose(prompt(adapter="a")) is found[2]
    assert {id(chosen.choose(prompt(start))) for start in range(97)} == {id(found[1]), id(found[2])}
    found[1].ready = found[2].ready = False
    assert chosen.quote(prompt()) is None and chosen.choose(prompt()) is found[0] is chosen.first


def test_the_first_is_one_that_is_ready() -> None:
    found = engines(2)
    found[0].ready = False
    assert replicas(found).first is found[1]


async def test_waiting_ends_with_the_first_that_is_ready() -> None:
    found = engines(2)
    found[0].ready = False
    await asyncio.wait_for(replicas(found).wait_ready(60), 10)
    found[1].ready = False
    with pytest.raises(EngineUnavailable):
        await replicas(found).wait_ready(0.01)


async def test_waiting_ends_with_one_that_was_added_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.providers.engine.replicas.RECHECK_S", 0.01)
    first, added = engines(2)
    first.ready = False
    chosen = replicas([first])
    waiting = asyncio.create_task(chosen.wait_ready(60.0))
    await asyncio.sleep(0)
    chosen.remove(chosen.clients[0])
    chosen.add(added)  # type: ignore[arg-type]
    await waiting
    added.ready = False
    with pytest.raises(EngineUnavailable):
        await chosen.wait_ready(0.05)


async def test_adapters_change_on_all_replicas_or_on_none() -> None:
    found = engines(3)
    await replicas(found).load_adapter("a", "/a", replaces=True, force=False)
    assert [engine.calls for engine in found] == [["a"]] * 3
    found[0].failure = AdapterError("no such folder")
    with pytest.raises(AdapterError):
        await replicas(found).load_adapter("a", "/a", replaces=True, force=False)
    await replicas(found).unload_adapter("a")  # two had it
    found[1].failure = found[2].failure = found[0].failure
    with pytest.raises(AdapterError):
        await replicas(found).unload_adapter("a")
    for engine in found:
        engine.calls.clear()
    found[0].ready = False  # it would come back with the old weights, or with what is gone elsewhere
    with pytest.raises(EngineUnavailable):
        await replicas(found).load_adapter("a", "/b", replaces=True, force=False)
    with pytest.raises(EngineUnavailable):
        await replicas(found).unload_adapter("a")
    assert [engine.calls for engine in found] == [[], [], []]


async def test_adapters_change_while_others_sleep_but_not_while_all_do() -> None:
    found = engines(2)
    found[1].may_sleep, found[1].ready = True, False
    await replicas(found).load_adapter("a", "/a", replaces=True, force=False)
    await replicas(found).unload_adapter("a")
    assert [engine.calls for engine in found] == [["a", "-a"], []]
    found[0].may_sleep, found[0].ready = True, False
    with pytest.raises(EngineUnavailable):
        await replicas(found).load_adapter("a", "/a", replaces=True, force=False)


async def test_an_adapter_goes_by_digest_to_engines_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    found = engines(3)
    for engine in found:
        engine.is_remote = True
    chosen = replicas(found)
    found[0].failure = AdapterError("/a is no folder")
    await chosen.load_adapter("a", "/a", replaces=True, force=False)
    assert [engine.calls for engine in found] == [["a"], ["a"], ["a digest"]]
    assert "'a' is not on every replica: the engine at tls://engine:1: /a is no folder" in caplog.text
    found[1].failure = found[2].failure = found[0].failure
    with pytest.raises(AdapterError, match="the engine at tls://engine:1: /a is no folder; the engine at"):
        await chosen.load_adapter("a", "/a", replaces=True, force=False)
    found[1].failure = AdapterExists("taken")
    with pytest.raises(AdapterExists):
        await chosen.load_adapter("a", "/a", replaces=False, force=False)


async def test_a_replica_that_comes_loads_what_the_others_have() -> None:
    found = engines(3)
    chosen = replicas(found)
    found[2].ready = False
    found[0].adapters = {
        "a": AdapterInfo("a", "digest", "m", 8, 1000, "/a"),
        "b": AdapterInfo("b", "other", "m", 8, 1000, "/b"),
        "c": AdapterInfo("c", "digest", "m", 8, 1000, "/c"),
    }
    found[2].adapters = {"c": found[0].adapters["c"]}
    found[2].greet()
    await asyncio.gather(*chosen._loading)
    assert sorted(found[2].calls) == ["a digest", "b other"], "not the files of another adapter"
    assert found[2].on_adapters is not None
    found[2].on_adapters(Adapters([]))  # unloaded since: not loaded again
    assert not chosen._loading
    found[1].failure = AdapterExists("another worker was first")
    found[1].greet()
    await asyncio.gather(*chosen._loading)


async def test_a_busy_replica_that_greets_last_shares_what_it_has() -> None:
    found = engines(2)
    chosen = replicas(found)
    found[0].ready = False
    found[1].greet()  # it has just started, and answers while the other works
    found[0].adapters = {"a": AdapterInfo("a", "digest", "m", 8, 1000, "/a")}
    found[0].greet()
    await asyncio.gather(*chosen._loading)
    assert [engine.calls for engine in found] == [[], ["a digest"]]


def test_why_a_replica_was_chosen_is_told_with_all_quotes() -> None:
    found = engines(6)
    chosen, placements = replicas(found), list[Placement]()
    for engine in found[:5]:
        engine.adapters["a"] = AdapterInfo("a", "digest", "m", 8, 1000, "/a")
    found[1].ready = False
    found[2].hello = structs.replace(HELLO, revision="other")
    found[3].stats = structs.replace(STATS, waiting_tokens=1500)
    found[4].stats = structs.replace(STATS, waiting_tokens=1600)
    publish(found[2], prompt())
    for _ in range(2):
        assert chosen.choose(prompt(adapter="a"), placements) is found[0]
    assert chosen.choose(prompt(start=3), placements) in found
    first, again, plain = placements
    assert (first.chosen, first.reason) == (0, "least seconds")
    assert [quote.why_not for quote in first.quotes] == [
        "", "not ready", "other weights", "", "", "lacks the adapter"
    ]  # fmt: skip
    assert [quote.queue_tokens for quote in first.quotes] == [0, 0, 0, 1500, 1600, 0]
    assert again.quotes[0].queue_tokens == 1_000
    assert {quote.uncached_tokens + quote.cached_tokens for quote in first.quotes} == {1_000}
    assert [quote.seconds for quote in first.quotes] == [0.105, 0, 0, 0.255, 0.265, 0]
    assert plain.chosen == 5 and len(placements) == 3

    alike = engines(3)
    assert replicas(alike).choose(prompt(), placements) in alike
    assert placements[-1].reason == "hash of the first page among 3 equal ones"
    replicas(alike[:1]).choose(prompt(), placements)
    assert len(placements) == 4  # one alone is no choice


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 63)), min_size=2, max_size=8),
    st.integers(1, 300),
)
def test_the_chosen_one_is_never_clearly_slower_than_another(
    loads: list[tuple[int, int]], length: int
) -> None:
    found = engines(len(loads))
    for engine, (waiting_tokens, pages) in zip(found, loads, strict=True):
        engine.stats = structs.replace(STATS, waiting_tokens=waiting_tokens)
        publish(engine, prompt(length=min(length, 16 * pages + 1)))
    cached = [min(pages, (length - 1) // 16) * 16 for _, pages in loads]
    seconds = [5e-3 + 1e-4 * (load[0] + length - held) for load, held in zip(loads, cached, strict=True)]
    quote = replicas(found).quote(prompt(length=length))
    assert quote is not None and quote.ttft_s <= 1.05 * min(seconds) + 3e-4
