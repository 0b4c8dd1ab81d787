"""Entries in this process, bounded in bytes, with cost-aware eviction and a quota per tenant."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from numpy import float16, float32
from numpy.typing import NDArray

from cache.entry import Entry, Selector
from cache.evidence import Evidence
from cache.frequency import FrequencySketch
from cache.vector_index import Neighbour, VectorIndex

SAMPLE_SIZE = 16
"""Candidates for one eviction, drawn at random as Redis does: nothing to keep in order on each hit."""
MAX_FORGOTTEN = 1000
"""Recent selectors, kept for requests that are under way."""


class MemoryStore:
    """At most `max_bytes` of entries, of which one tenant has at most `max_tenant_bytes`."""

    def __init__(self, max_bytes: int, max_tenant_bytes: int, seed: int = 0) -> None:
        self.num_bytes = 0
        self.evidence = Evidence()  # about what was served from here
        self.on_forget: Callable[[], None] = lambda: None
        """Called when entries were forgotten, so that no copy of them stays."""
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._entries: dict[bytes, Entry] = {}
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._keys = _SampledKeys()
        self._index = VectorIndex()
        self._frequency = FrequencySketch()
        self._random = random.Random(seed)
        self._forgotten: deque[tuple[float, Selector]] = deque(maxlen=MAX_FORGOTTEN)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now_s: float) -> Entry | None:
        """The entry of this exact key, unless it has expired."""
        self._frequency.record(key)
        return self._live(key, now_s)

    def peek(self, key: bytes, now_s: float) -> Entry | None:
        """`get` without counting a request."""
        return self._live(key, now_s)

    def keys(self) -> list[bytes]:
        """The keys of all entries, those that have expired included."""
        return self._keys.all()

    def entries(self) -> Iterable[Entry]:
        """All entries, those that have expired included; valid until one is added or removed."""
        return self._entries.values()

    def record_hit(self, key: bytes) -> None:
        """Count a request that was answered with this entry though its own key is another."""
        self._frequency.record(key)

    def nearest(
        self, partition: bytes, vector: NDArray[float32], count: int, now_s: float
    ) -> list[tuple[Entry, Neighbour]]:
        """Up to `count` entries of the partition that have not expired, best first."""
        found = self._index.search(partition, vector, count)
        live = ((self._live(each.key, now_s), each) for each in found)
        return [(entry, each) for entry, each in live if entry is not None]

    def add(self, entry: Entry, vector: NDArray[float16] | None = None) -> bool:
        """Store or replace an entry. False: not admitted, it is worth less than what it would evict.

        `vector`: what its question means, of unit length; None: it is found by its exact key only.
        Raises ValueError for a vector of another length than those of its partition.
        """
        entry.vector_bytes = 0 if vector is None else vector.nbytes
        self.remove(entry.key)
        size = entry.size_bytes
        tenant = self._tenants[entry.tenant]
        is_admitted = (
            size <= self._max_tenant_bytes
            and self._make_room(tenant.keys, tenant.num_bytes + size - self._max_tenant_bytes, entry)
            and self._make_room(self._keys, self.num_bytes + size - self._max_bytes, entry)
        )
        if is_admitted:
            if vector is not None:
                self._index.add(entry.partition, entry.key, vector)
            self._insert(entry, size)
        self._drop_if_empty(entry.tenant)
        return is_admitted

    def _insert(self, entry: Entry, size: int) -> None:
        tenant = self._tenants[entry.tenant]
        self._entries[entry.key] = entry
        for keys in (self._keys, tenant.keys):
            keys.add(entry.key)
        tenant.num_bytes += size
        self.num_bytes += size

    def _make_room(self, keys: _SampledKeys, excess_bytes: int, newcomer: Entry) -> bool:
        """Evict the least valuable of a sample of `keys` until `excess_bytes` are free."""
        worth = self._worth(newcomer)
        while excess_bytes > 0:
            sample = [self._entries[key] for key in keys.sample(self._random, SAMPLE_SIZE)]
            victim = min(sample, key=lambda entry: self._worth_at(entry, newcomer.created_s))
            if self._worth_at(victim, newcomer.created_s) > worth:
                return False
            excess_bytes -= victim.size_bytes
            self.remove(victim.key)
        return True

    def _worth_at(self, entry: Entry, now_s: float) -> float:
        return -1.0 if entry.expires_s <= now_s else self._worth(entry)

    def _worth(self, entry: Entry) -> float:
        """Tokens that the entry is likely to save per byte: the newcomer's rate decides (TinyLFU)."""
        return entry.saved_tokens * (1 + self._frequency.estimate(entry.key)) / entry.size_bytes

    def remove(self, key: bytes) -> bool:
        """Forget the entry of this key. Returns whether there was one."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        tenant = self._tenants[entry.tenant]
        for keys in (self._keys, tenant.keys):
            keys.remove(key)
        tenant.num_bytes -= entry.size_bytes
        self.num_bytes -= entry.size_bytes
        self._drop_if_empty(entry.tenant)
        if entry.vector_bytes:
            self._index.remove(entry.partition, key)
        return True

    def rows(self) -> Iterator[tuple[Entry, bytes]]:
        """All entries with their vectors, b"" without one."""
        for entry in self._entries.values():
            vector = self._index.vector(entry.partition, entry.key) if entry.vector_bytes else None
            yield entry, b"" if vector is None else vector.tobytes()

    def was_forgotten(self, entry: Entry, asked_s: float) -> bool:
        """Whether an entry whose question was asked at `asked_s` has been forgotten since."""
        return any(asked_s <= when_s and selector.matches(entry) for when_s, selector in self._forgotten)

    def forget(self, selector: Selector, now_s: float) -> int:
        """Forget matching entries, those of requests under way too. Returns the number of stored ones."""
        self._forgotten.append((now_s, selector))
        self.on_forget()
        if selector.kind == "entry":
            keys = [selector.key]
        elif selector.tenant is None:
            keys = self._keys.all()
        else:
            keys = self._tenants[selector.tenant].keys.all() if selector.tenant in self._tenants else []
        found = [key for key in keys if key in self._entries and selector.matches(self._entries[key])]
        return sum(self.remove(key) for key in found)

    def _live(self, key: bytes, now_s: float) -> Entry | None:
        entry = self._entries.get(key)
        if entry is not None and entry.expires_s <= now_s:
            self.remove(key)
            return None
        return entry

    def _drop_if_empty(self, tenant: str) -> None:
        if not self._tenants[tenant].num_bytes:
            del self._tenants[tenant]


class _SampledKeys:
    """A set that can be sampled in constant time."""

    __slots__ = ("_places", "_row")

    def __init__(self) -> None:
        self._row: list[bytes] = []
        self._places: dict[bytes, int] = {}

    def add(self, key: bytes) -> None:
        self._places[key] = len(self._row)
        self._row.append(key)

    def remove(self, key: bytes) -> None:
        place, last = self._places.pop(key), self._row.pop()
        if last != key:
            self._row[place] = last
            self._places[last] = place

    def all(self) -> list[bytes]:
        return list(self._row)

    def sample(self, draw: random.Random, count: int) -> list[bytes]:
        if len(self._row) <= count:
            return self.all()
        return [self._row[draw.randrange(len(self._row))] for _ in range(count)]


@dataclass(slots=True, eq=False)
class _Tenant:
    """What one tenant has stored."""

    num_bytes: int = 0
    keys: _SampledKeys = field(default_factory=_SampledKeys)
