"""Quotes against an engine's real prefix cache."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.kv.prefix_tree import page_digest, root_digest
from backend.server.engine_messages import DIGEST_BYTES, CachedPages, EngineStats, Hello
from backend.server.quote import PageIndex, predict, prefix_digests
from backend.types import PAGE_TOKENS, Sequence
from tests.backend.engine.fake_runner import FakeRunner
from tests.backend.server.asking import ask

PROMPT = list(range(2, 2 + 3 * PAGE_TOKENS))


def pages_of(token_ids: list[int], root: bytes) -> bytes:
    digests, digest = b"", root
    for start in range(0, len(token_ids) // PAGE_TOKENS * PAGE_TOKENS, PAGE_TOKENS):
        digest = page_digest(digest, token_ids[start : start + PAGE_TOKENS])
        digests += digest[:DIGEST_BYTES]
    return digests


ROOT = root_digest("rev", "float32", "", "")


HELLO = Hello("m", "/c", "rev", 4096, 100, 64, "cpu", "float32", kv_dtype="float32")


def cached(index: PageIndex, token_ids: list[int], tenant_salt: str = "", adapter: str = "") -> list[int]:
    return index.cached_tokens(prefix_digests(HELLO, token_ids, tenant_salt, adapter))


@pytest.mark.parametrize(("tenant_salt", "adapter", "tokens"), [("", "", 32), ("t", "", 0), ("", "a", 0)])
def test_only_the_same_tenants_and_adapters_pages_count(tenant_salt: str, adapter: str, tokens: int) -> None:
    index = PageIndex()
    index.add_replica().update(CachedPages(pages_of(PROMPT, ROOT)))
    assert cached(index, PROMPT, tenant_salt, adapter) == [tokens]  # the last token is computed again


def test_evicted_pages_end_the_prefix() -> None:
    index, digests = PageIndex(), pages_of(PROMPT, ROOT)
    pages = index.add_replica()
    pages.update(CachedPages(digests))
    pages.update(CachedPages(evicted=digests[DIGEST_BYTES : 2 * DIGEST_BYTES]))
    assert cached(index, [*PROMPT, 1]) == [PAGE_TOKENS]
    assert len(pages) == 2


NUM_PAGES = 3
Change = tuple[int, list[int], list[int]]  # replica, pages that it publishes, pages that it evicts
PAGES = st.lists(st.integers(0, NUM_PAGES - 1), max_size=NUM_PAGES)


@given(st.lists(st.tuples(st.integers(0, 69), PAGES, PAGES), max_size=30), st.sets(st.integers(0, 69)))
def test_an_index_of_many_replicas_equals_one_of_each(changes: list[Change], gone: set[int]) -> None:
    index, digests = PageIndex(), pages_of(PROMPT, ROOT)
    replicas = [index.add_replica() for _ in range(70)]
    expected: list[set[int]] = [set() for _ in replicas]
    chosen = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
    for number, published, evicted in changes:
        message = CachedPages(
            b"".join(chosen[page] for page in published), b"".join(chosen[page] for page in evicted)
        )
        replicas[number].update(message)
        expected[number] = (expected[number] - {*evicted}) | {*published}
    for number in gone:
        replicas[number].clear()
        expected[number] = set()
    lengths = [next(page for page in range(NUM_PAGES + 1) if page not in held) for held in expected]
    assert cached(index, [*PROMPT, 1]) == [length * PAGE_TOKENS for length in lengths]
    assert [len(pages) for pages in replicas] == [len(held) for held in expected]


def test_times_follow_the_measured_speeds() -> None:
    stats = EngineStats(
        num_waiting=2, num_running=4, waiting_tokens=100, admission_interval_s=0.5,
        prefill_s_per_token=0.001, decode_step_s=0.02,
        generated_tokens_total=300, requests_total={"stop": 2, "length": 1, "abort": 7},
    )  # fmt: skip
    found = predict(stats, 48, 0)
    assert found.queue_tokens == 100
    assert found.ttft_s == pytest.approx(2 * 0.5 + 48 * 0.001 + 0.02)
    assert found.cost_s == pytest.approx(48 * 0.001 + 100 * 0.02 / 4)
    busy = structs.replace(stats, step_time_sum_s=8.0, work_s_total=2.0)  # another process had the core
    assert predict(busy, 48, 0).cost_s == pytest.approx(found.cost_s / 4)
    assert predict(stats, 48, 0, max_tokens=10).cost_s == pytest.approx(0.048 + 0.05)
    assert predict(stats, 48, 32).ttft_s == pytest.approx(2 * 0.5 + 16 * 0.001 + 0.02)


def test_what_was_sent_since_the_heartbeat_waits_as_well() -> None:
    stats = EngineStats(
        num_running=4,
        max_running=6,
        admission_interval_s=0.5,
        prefill_s_per_token=0.001,
        decode_step_s=0.02,
    )
    assert predict(stats, 48, 0, sent_tokens=100, num_sent=2).ttft_s == pytest.approx(0.1 + 0.048 + 0.02)
    assert predict(stats, 48, 0, sent_tokens=100, num_sent=5).ttft_s == pytest.approx(1.5 + 0.048 + 0.02)


def test_with_recurrent_states_a_quote_is_what_the_scheduler_reuses() -> None:
    runner = FakeRunner(num_pages=80, max_model_tokens=1024)
    runner.facts = replace(runner.facts, max_running=2, num_checkpoints=3)
    engine = Engine(EngineConfig(model="m", checkpoint="/c", max_running=2), runner)
    index, hello = PageIndex(), structs.replace(HELLO, revision="fake", has_states=True)
    pages = index.add_replica()
    draw, prompts, quoted = random.Random(5), [list(range(3, 653))], set()
    engine.kv.take_changes()
    for number in range(25):
        old = draw.choice(prompts)
        kept = draw.randrange(1, min(len(old), 800))
        prompts.append(old[:kept] + [draw.randrange(3, 99) for _ in range(90)])
        asked = Sequence(ask(f"{number}", prompts[-1], 1), prompts[-1], len(prompts[-1]))
        sides: dict[bool, bytes] = {True: b"", False: b""}
        for digest, is_new in engine.kv.take_changes().items():
            sides[is_new] += digest[:DIGEST_BYTES]
        pages.update(CachedPages(sides[True], sides[False]))
        (found,) = index.cached_tokens(prefix_digests(hello, prompts[-1]), has_gaps=True)
        assert found == engine.kv.match(asked).num_tokens
        engine.kv.release(asked)
        quoted.add(found)
        engine.add(asked.request)
        while engine.has_work:
            engine.step()
    assert len(quoted) > 3


def test_an_engine_tells_which_pages_it_has() -> None:
    engine = Engine(EngineConfig(model="m", checkpoint="/c", max_running=4), FakeRunner())
    engine.kv.take_changes()
    engine.add(ask("a", PROMPT, 4))
    while engine.has_work:
        engine.step()
    changes = engine.kv.take_changes()
    assert set(changes) == set(engine.kv.cached_digests()) and len(changes) == 3 and all(changes.values())
    assert engine.kv.take_changes() == {}
