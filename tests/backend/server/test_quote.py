"""Quotes against an engine's real prefix cache."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec import structs

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.kv.prefix_tree import page_digest, root_digest
from backend.server.engine_messages import DIGEST_BYTES, CachedPages, EngineStats, Hello
from backend.server.quote import PageIndex, predict
from backend.types import PAGE_TOKENS, Sequence
from tests.backend.engine.fake_runner import FakeRunner
from tests.backend.server.asking import ask

HELLO = Hello("m", "/c", "rev", 4096, 100, 64, "cpu", "float32", kv_dtype="float32")
PROMPT = list(range(2, 2 + 3 * PAGE_TOKENS))


def pages_of(token_ids: list[int], root: bytes) -> bytes:
    digests, digest = b"", root
    for start in range(0, len(token_ids) // PAGE_TOKENS * PAGE_TOKENS, PAGE_TOKENS):
        digest = page_digest(digest, token_ids[start : start + PAGE_TOKENS])
        digests += digest[:DIGEST_BYTES]
    return digests


@pytest.mark.parametrize(("tenant_salt", "adapter", "cached"), [("", "", 32), ("t", "", 0), ("", "a", 0)])
def test_only_the_same_tenants_and_adapters_pages_count(tenant_salt: str, adapter: str, cached: int) -> None:
    pages = PageIndex()
    pages.update(CachedPages(pages_of(PROMPT, root_digest("rev", "float32", "", ""))))
    found = predict(HELLO, EngineStats(), pages, PROMPT, tenant_salt=tenant_salt, adapter=adapter)
    assert (found.prompt_tokens, found.cached_tokens) == (48, cached)  # the last token is computed again


def test_evicted_pages_end_the_prefix() -> None:
    pages, digests = PageIndex(), pages_of(PROMPT, root_digest("rev", "float32", "", ""))
    pages.update(CachedPages(digests))
    pages.update(CachedPages(evicted=digests[DIGEST_BYTES : 2 * DIGEST_BYTES]))
    assert predict(HELLO, EngineStats(), pages, [*PROMPT, 1]).cached_tokens == PAGE_TOKENS
    assert len(pages) == 2


def test_times_follow_the_measured_speeds() -> None:
    stats = EngineStats(
        num_waiting=2, num_running=4, waiting_tokens=100, admission_interval_s=0.5,
        prefill_s_per_token=0.001, decode_step_s=0.02,
        generated_tokens_total=300, requests_total={"stop": 2, "length": 1, "abort": 7},
    )  # fmt: skip
    found = predict(HELLO, stats, PageIndex(), PROMPT)
    assert found.queue_tokens == 100
    assert found.ttft_s == pytest.approx(2 * 0.5 + 48 * 0.001 + 0.02)
    assert found.cost_s == pytest.approx(48 * 0.001 + 100 * 0.02 / 4)
    busy = structs.replace(stats, step_time_sum_s=8.0, work_s_total=2.0)  # another process had the core
    assert predict(HELLO, busy, PageIndex(), PROMPT).cost_s == pytest.approx(found.cost_s / 4)
    assert predict(HELLO, stats, PageIndex(), PROMPT, max_tokens=10).cost_s == pytest.approx(0.048 + 0.05)


def test_with_recurrent_states_a_quote_is_what_the_scheduler_reuses() -> None:
    runner = FakeRunner(num_pages=80, max_model_tokens=1024)
    runner.facts = replace(runner.facts, max_running=2, num_checkpoints=3)
    engine = Engine(EngineConfig(model="m", checkpoint="/c", max_running=2), runner)
    pages, hello = PageIndex(), structs.replace(HELLO, revision="fake", has_states=True)
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
        found = predict(hello, EngineStats(), pages, prompts[-1]).cached_tokens
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
