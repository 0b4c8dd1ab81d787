"""LRU eviction of what can be spared, and reads of what was evicted, one at a time."""

from __future__ import annotations

from concurrent.futures import Future

from backend.lora.adapter_weights import Adapter
from backend.lora.host_cache import HostCache


class Owner:
    """Spares what is not `needed`; reads everything but what is `unwanted`."""

    def __init__(self) -> None:
        self.needed: set[str] = set()
        self.unwanted: set[str] = set()
        self.reads: dict[str, Future[Adapter]] = {}

    def may_evict(self, digest: str) -> bool:
        return digest not in self.needed

    def read_again(self, digest: str) -> Future[Adapter] | None:
        if digest in self.unwanted:
            return None
        self.reads[digest] = Future()
        return self.reads[digest]


def adapter(digest: str, num_bytes: int = 10) -> Adapter:
    return Adapter(digest, "base", 1, {}, num_bytes)


def held(cache: HostCache) -> str:
    return "".join(digest for digest in "abcdef" if digest in cache)


def test_the_least_recently_used_is_evicted() -> None:
    cache = HostCache(30, Owner())
    for digest in "abc":
        cache.put(adapter(digest))
    assert cache.ensure_loaded("a") and not cache.is_reading
    cache.put(adapter("d"))
    assert held(cache) == "acd" and cache.num_bytes == 30
    cache.put(adapter("c", 25))
    assert held(cache) == "c" and cache.num_bytes == 25, "replaced, not counted twice"


def test_what_is_needed_stays_above_the_limit() -> None:
    owner = Owner()
    cache = HostCache(20, owner)
    owner.needed = {"a", "b", "c"}
    for digest in "abc":
        cache.put(adapter(digest))
    assert held(cache) == "abc" and cache.num_bytes == 30
    owner.needed = {"a", "c"}
    cache.put(adapter("c"))
    assert held(cache) == "ac"


def test_missing_adapters_are_read_one_at_a_time() -> None:
    owner = Owner()
    cache = HostCache(30, owner)
    for digest in "aabc":
        assert not cache.ensure_loaded(digest)
    assert list(owner.reads) == ["a"] and cache.is_reading and cache.take_finished() is None
    assert cache.pending_reads == [owner.reads["a"]]
    owner.reads["a"].set_result(adapter("a"))
    owner.unwanted.add("b")
    finished = cache.take_finished()
    assert finished is not None and finished[0] == "a"
    cache.put(finished[1].result())
    cache.start_reads()
    assert list(owner.reads) == ["a", "c"], "no request wants b any more"
    cache.discard("c")
    owner.reads["c"].set_exception(OSError())
    assert cache.take_finished() is not None and not cache.is_reading
    assert held(cache) == "a" and cache.reads_total == 2


def test_reads_wait_for_room() -> None:
    owner = Owner()
    cache = HostCache(10, owner)
    owner.needed = {"a"}
    cache.put(adapter("a", 20))
    assert not cache.ensure_loaded("b") and not owner.reads and cache.is_reading
    owner.needed.clear()
    cache.start_reads()
    assert list(owner.reads) == ["b"] and held(cache) == ""
    cache.discard("b")
    assert cache.is_reading, "a read in progress goes on"
