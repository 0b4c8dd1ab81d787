"""The grammar cache's bound in bytes: order of eviction, grammars in use, stale entries."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from backend.errors import RequestError
from backend.structured import compiled_grammar
from backend.structured.compiled_grammar import GROWTH_BYTES_PER_S, CompiledGrammar
from backend.structured.grammar_cache import GrammarCache, OverLimit
from tests.backend.structured.letters import grammar

MIB = 1 << 20


def add(
    cache: GrammarCache, key: bytes, num_bytes: int = MIB, *, is_cheap: bool = False
) -> Future[CompiledGrammar]:
    matcher = grammar("[ab]+").matcher
    compiled = CompiledGrammar(matcher, (lambda: matcher) if is_cheap else None, num_bytes)
    future: Future[CompiledGrammar] = Future()
    future.set_result(compiled)
    cache.put(key, future)
    cache.count(compiled)
    return future


def test_the_least_recently_used_grammars_leave_until_the_rest_fits() -> None:
    cache = GrammarCache(4 * MIB)
    for key in (b"a", b"b", b"c"):
        add(cache, key)
    assert cache.get(b"a")
    add(cache, b"d")
    cache.evict()
    assert cache.get(b"b") is None
    assert cache.get(b"a") and cache.get(b"c") and cache.get(b"d")
    assert cache.num_bytes <= 4 * MIB


def test_a_grammar_in_use_counts_until_its_last_sequence_has_ended() -> None:
    cache = GrammarCache(2 * MIB)
    used = add(cache, b"a", 2 * MIB)
    cache.evict()
    assert cache.get(b"a") is None and not cache.has_room and cache.num_bytes >= 2 * MIB
    del used
    assert cache.has_room and cache.num_bytes < MIB


def test_growth_by_use_counts() -> None:
    cache = GrammarCache(20 * MIB)
    add(cache, b"a", is_cheap=False).result().used_s = 10 * MIB / GROWTH_BYTES_PER_S
    assert 10 * MIB <= cache.num_bytes < 12 * MIB
    add(cache, b"b", 10 * MIB)
    cache.evict()
    assert cache.get(b"a") is None and cache.get(b"b") is not None


@pytest.mark.parametrize(("is_cheap", "is_kept"), [(True, False), (False, True)])
def test_only_a_grammar_that_compiles_fast_is_compiled_again_after_growth(
    is_cheap: bool, is_kept: bool
) -> None:
    cache = GrammarCache(1 << 30)
    found = add(cache, b"a", is_cheap=is_cheap)
    found.result().used_s = 60.0
    assert found.result().growth_bytes == compiled_grammar.MAX_GROWTH_BYTES
    assert (cache.get(b"a") is not None) is is_kept


def test_refusals_count_too_and_expire() -> None:
    cache = GrammarCache(MIB)
    for number in range(100):
        refused: Future[CompiledGrammar] = Future()
        refused.set_exception(RequestError("no"))
        cache.put(b"%d" % number, refused)
    cache.evict()
    assert cache.num_bytes <= MIB and cache.get(b"99") and not cache.get(b"0")
    expired: Future[CompiledGrammar] = Future()
    expired.set_exception(OverLimit("slow", "guided_regex"))
    cache.put(b"slow", expired)
    assert cache.get(b"slow") is None
