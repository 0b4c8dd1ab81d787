from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.entry import OVERHEAD_BYTES, Entry, Labels, Selector
from cache.inverted_file import load_faiss
from cache.memory_store import MemoryStore
from tests.cache.entries import DIMENSIONS, add, entry_of, key_of, unit

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "get", "remove"]),
        st.integers(0, 30),
        st.sampled_from(["alice", "bob"]),
        st.integers(1, 4000),
    ),
    max_size=60,
)


@given(_STEPS)
@settings(deadline=None)
def test_bytes_stay_within_both_bounds(steps: list[tuple[str, int, str, int]]) -> None:
    store = MemoryStore(10_000, 6_000)
    kept: dict[bytes, Entry] = {}
    for now_s, (step, number, tenant, size) in enumerate(steps):
        if step == "add":
            entry = entry_of(number, tenant=tenant, answer_bytes=size, created_s=now_s)
            if add(store, entry, number):
                kept[entry.key] = entry
        elif step == "remove":
            store.remove(key_of(number))
        kept = {key: e for key, e in kept.items() if store.get(key, now_s) is e}
        assert store.num_bytes == sum(e.size_bytes for e in kept.values()) <= 10_000
        assert len(store) == len(kept)
        for name in ("alice", "bob"):
            assert sum(e.size_bytes for e in kept.values() if e.tenant == name) <= 6_000
        near = store.nearest(b"p", unit(number), 100, now_s)
        assert {e.key for e, _ in near} == kept.keys()


def test_an_expired_entry_is_gone() -> None:
    store = MemoryStore(10_000, 10_000)
    add(store, entry_of(1, ttl_s=10), 1)
    assert store.get(key_of(1), 9.9) is not None
    assert store.get(key_of(1), 10.0) is None and store.num_bytes == 0
    add(store, entry_of(1, ttl_s=10), 1)
    assert store.nearest(b"p", unit(1), 5, 10.0) == [] and len(store) == 0


def test_what_is_asked_for_and_cheap_to_keep_stays() -> None:
    store = MemoryStore(20_000, 20_000)
    for _ in range(10):
        store.get(key_of(0), 0.0)
    assert add(store, entry_of(0), 0)
    for number in range(1, 100):
        add(store, entry_of(number, tokens=10), number)
    assert store.get(key_of(0), 1.0) is not None
    assert not add(store, entry_of(100, tokens=1), 100)  # worth less than anything that it would evict
    assert add(store, entry_of(101, tokens=1000), 101)


def test_an_entry_larger_than_a_tenants_share_is_not_admitted() -> None:
    store = MemoryStore(10_000, 5_000)
    assert not add(store, entry_of(1, answer_bytes=5_000), 1)
    assert len(store) == 0 and store.num_bytes == 0


def test_a_full_tenant_evicts_its_own_entries_only() -> None:
    store = MemoryStore(100_000, 5_000)
    add(store, entry_of(0, tenant="bob", tokens=1), 0)
    for number in range(1, 50):
        add(store, entry_of(number, tenant="alice"), number)
    assert store.get(key_of(0), 0.0) is not None


def test_a_tenant_is_forgotten_with_a_receipt() -> None:
    store = MemoryStore(100_000, 100_000)
    for number in range(6):
        add(store, entry_of(number, tenant="alice" if number % 2 else "bob"), number)
    everything = Selector("tenant", "alice", "alice")
    assert store.forget(everything, 0.0) == 3 and store.forget(everything, 0.0) == 0
    assert len(store) == 3 and store.get(key_of(1), 0.0) is None and store.get(key_of(0), 0.0) is not None


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        (Selector("model", "large", "alice"), {0, 1, 3, 4, 5}),
        (Selector("model", "large", None), {0, 1, 3, 4}),
        (Selector("tag", "b", "alice"), {1, 2, 3, 4, 5}),
        (Selector("user", "u", None), {0, 2, 3, 5}),
        (Selector("entry", key_of(3).hex(), "bob"), {0, 1, 2, 4, 5}),
        (Selector("entry", key_of(3).hex(), "alice"), {0, 1, 2, 3, 4, 5}),
        (Selector("tenant", "bob", None), {0, 1, 2}),
        (Selector("tenant", "nobody", "nobody"), {0, 1, 2, 3, 4, 5}),
    ],
)
def test_selectors(selector: Selector, left: set[int]) -> None:
    store = MemoryStore(100_000, 100_000)
    labels = [Labels("small", "", ("a", "b")), Labels("small", "u", ("a",)), Labels("large")] * 2
    for number in range(6):
        entry = entry_of(number, tenant="alice" if number < 3 else "bob")
        entry.labels = labels[number] if number != 3 else Labels("small")
        add(store, entry, number)
    assert store.forget(selector, 0.0) == 6 - len(left)
    assert {number for number in range(6) if store.get(key_of(number), 0.0)} == left


def _bytes_per_entry(partitions: bool) -> float:
    store = MemoryStore(1 << 30, 1 << 30)
    load_faiss()  # so that only entries are measured
    tracemalloc.start()
    try:
        for number in range(2000):
            add(store, entry_of(number, partition=key_of(-number) if partitions else b"p"), number)
        return tracemalloc.get_traced_memory()[0] / 2000
    finally:
        tracemalloc.stop()


def test_the_overhead_is_what_python_takes() -> None:
    payload_bytes = 100 + 2 * DIMENSIONS
    assert 0.6 * OVERHEAD_BYTES < _bytes_per_entry(partitions=False) - payload_bytes < OVERHEAD_BYTES
    # The most expensive case: each entry has a partition of its own.
    assert _bytes_per_entry(partitions=True) - payload_bytes < 2 * OVERHEAD_BYTES


def test_one_entry_is_forgotten_by_its_key() -> None:
    store = MemoryStore(100_000, 100_000)
    for number in range(3):
        add(store, entry_of(number), number)
    assert store.forget(Selector("entry", key_of(1).hex(), "bob"), 0.0) == 0  # it is alice's
    assert store.forget(Selector("entry", "no key", None), 0.0) == 0
    assert store.forget(Selector("entry", key_of(1).hex(), "alice"), 0.0) == 1 and len(store) == 2
