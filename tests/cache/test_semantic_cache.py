from __future__ import annotations

import numpy as np
import pytest
from numpy import float32
from numpy.typing import NDArray

from cache.entry import Selector
from cache.memory_store import MemoryStore
from cache.question import Question
from cache.semantic_cache import SemanticCache
from tests.cache.entries import key_of, unit
from tests.cache.verifiers import ScriptedVerifier


def question(text: str, partition: bytes = b"p") -> Question:
    return Question("alice", partition, key_of(hash((text, partition))), text, ())


def mixed(share: float) -> NDArray[float32]:
    vector = share * unit(1) + (1 - share) * unit(2)
    return (vector / np.linalg.norm(vector)).astype(float32)


def cache_of(**probabilities: float) -> SemanticCache:
    cache = SemanticCache(MemoryStore(1 << 20, 1 << 20), ScriptedVerifier(**probabilities), lambda: 0.0)
    for text, share in (("closest", 1.0), ("further", 0.9)):
        cache.add(question(text), mixed(share), text.encode(), 5, 60.0, 0.0)
    return cache


def test_the_most_probable_candidate_is_served_not_the_closest() -> None:
    match = cache_of(closest=0.2, further=0.995).find_similar(
        question("which of these is it"), mixed(1.0), 0.01
    )
    assert match is not None and (match.tier, match.entry.answer) == ("semantic", b"further")
    assert match.probability == pytest.approx(0.995) and match.similarity < 1.0 and match.entry.hits == 1


def test_the_error_rate_decides() -> None:
    cache = cache_of(closest=0.98, further=0.0)
    strict = cache.find_similar(question("which of these is it"), mixed(1.0), 0.01)
    lax = cache.find_similar(question("which of these is it"), mixed(1.0), 0.05)
    assert strict is not None and strict.tier == "near"
    assert lax is not None and lax.tier == "semantic"


def test_even_an_identical_vector_must_be_verified() -> None:
    match = cache_of(closest=0.0, further=0.0).find_similar(
        question("which of these is it"), mixed(1.0), 0.01
    )
    assert match is not None and match.tier == "near" and match.similarity == pytest.approx(1.0, abs=1e-3)


def test_what_is_far_is_no_draft() -> None:
    cache = SemanticCache(MemoryStore(1 << 20, 1 << 20), ScriptedVerifier(one=0.1), lambda: 0.0)
    cache.add(question("one"), unit(1), b"", 5, 60.0, 0.0)
    assert cache.find_similar(question("which of these is it"), unit(2), 0.01) is None


async def test_other_partitions_are_never_searched() -> None:
    cache = cache_of(closest=1.0, further=1.0)
    assert cache.find_similar(question("which of these is it", b"q"), mixed(1.0), 0.01) is None
    assert await cache.find_exact(question("closest", b"q")) is None


async def test_without_a_verifier_nothing_is_served_by_meaning() -> None:
    cache = SemanticCache(MemoryStore(1 << 20, 1 << 20), None)
    cache.add(question("one"), unit(1), b"", 5, 60.0, 0.0)
    assert cache.find_similar(question("which of these is it"), unit(1), 0.5) is None
    assert await cache.find_exact(question("one")) is not None


async def test_an_entry_without_a_vector_is_found_exactly() -> None:
    cache = cache_of(closest=1.0, further=1.0)
    cache.add(question("exact only"), None, b"x", 5, 60.0, 0.0)
    match = await cache.find_exact(question("exact only"))
    assert match is not None and match.tier == "exact" and match.entry.answer == b"x"


async def test_an_answer_that_was_invalidated_under_way_is_not_stored() -> None:
    now_s = 10.0
    cache = SemanticCache(MemoryStore(1 << 20, 1 << 20), None, lambda: now_s)
    assert cache.add(question("one"), None, b"x", 5, 60.0, asked_s=9.0)
    assert await cache.forget(Selector("tenant", "alice", "alice")) == 1
    assert not cache.add(question("two"), None, b"x", 5, 60.0, asked_s=9.5)
    assert await cache.find_exact(question("two")) is None
    now_s = 11.0
    assert cache.add(question("two"), None, b"x", 5, 60.0, asked_s=10.5)
