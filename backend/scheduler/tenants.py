"""Fair queueing by tenant: a virtual token counter for each, and who is served next.

The counter grows with the tokens that were computed for a tenant (Sheng et al., "Fairness in Serving Large
Language Models", 2024). The tenant with the lowest one goes first. One that had nothing waiting is lifted to
those that have: being idle gathers no credit.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from backend.kv.manager import pages_for
from backend.types import PAGE_TOKENS, ScheduledChunk, Sequence

OUTPUT_WEIGHT = 2
"""Counter units of an output token; a prompt token has 1. Outputs hold a row of the batch for each token."""

TURN = 512
"""Counter units by which the tenants that take turns with a row or with pages may be apart, at least."""

_MAX_GONE = 1024
"""Counters kept of tenants that have no sequence."""


@dataclass(slots=True, eq=False)
class Tenant:
    """What one tenant has in the scheduler, at one priority."""

    served: int = 0  # the virtual token counter
    num_running: int = 0
    num_pages: int = 0  # of running sequences, when `Scheduler.schedule` began
    waiting: OrderedDict[str, Sequence] = field(default_factory=OrderedDict)  # by request id, in order

    def ready(self) -> Iterator[Sequence]:
        """Waiting sequences that are not blocked, in order."""
        return (sequence for sequence in self.waiting.values() if not sequence.is_blocked)


@dataclass(frozen=True, slots=True)
class Shares:
    """What there is to share out."""

    num_rows: int
    num_pages: int

    def held(self, tenant: Tenant, more_rows: int = 0, more_pages: int = 0) -> float:
        """The tenant's share of rows or pages, the larger one (dominant resource fairness)."""
        rows = (tenant.num_running + more_rows) / self.num_rows
        return max(rows, (tenant.num_pages + more_pages) / self.num_pages)


class Tenants:
    """The tenants with sequences of one priority. Every sequence goes through `enter`, `start` and `end`."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self._active: dict[str, Tenant] = {}
        self._gone: dict[str, int] = {}  # counters of tenants without sequences, above the lowest waiting one

    def __len__(self) -> int:
        """Tenants with sequences that wait or run."""
        return len(self._active)

    @property
    def waiting(self) -> Iterator[Sequence]:
        """All waiting sequences, by tenant."""
        return itertools.chain.from_iterable(tenant.waiting.values() for tenant in self._active.values())

    def of(self, sequence: Sequence) -> Tenant:
        """The tenant of a sequence that waits or runs."""
        return self._active[sequence.request.tenant_salt]

    @property
    def is_shared(self) -> bool:
        """Whether a tenant's service matters to another one; there is nothing to count for one alone."""
        return len(self._active) > 1 or bool(self._gone)

    def forget_pages(self) -> None:
        """Set every tenant's `num_pages` to 0."""
        for tenant in self._active.values():
            tenant.num_pages = 0

    def has_share(self, sequence: Sequence, num_places: int) -> bool:
        """Whether its tenant has an equal share, or more, of `num_places` of the queue."""
        tenant = self._active.get(sequence.request.tenant_salt)
        num_tenants = len(self._active) + (tenant is None)
        return (0 if tenant is None else len(tenant.waiting)) >= num_places // num_tenants

    def enter(self, sequence: Sequence, *, is_first: bool = False) -> None:
        """Queue a sequence, behind its tenant's others or before them."""
        name, request_id = sequence.request.tenant_salt, sequence.request.request_id
        tenant = self._active.get(name)
        if tenant is None:
            tenant = self._active[name] = Tenant(self._gone.pop(name, 0))
        if not tenant.waiting:
            tenant.served = max(tenant.served, self._floor(tenant))
        tenant.waiting[request_id] = sequence
        if is_first:
            tenant.waiting.move_to_end(request_id, last=False)
        self.num_waiting += 1

    def start(self, sequence: Sequence) -> None:
        """A waiting sequence begins to run."""
        tenant = self.of(sequence)
        del tenant.waiting[sequence.request.request_id]
        tenant.num_running += 1
        self.num_waiting -= 1

    def drop(self, sequence: Sequence) -> None:
        """A waiting sequence was aborted."""
        del self.of(sequence).waiting[sequence.request.request_id]
        self.num_waiting -= 1
        self._leave(sequence)

    def end(self, sequence: Sequence) -> None:
        """A running sequence stopped; a preempted one will `enter` again."""
        self.of(sequence).num_running -= 1
        self._leave(sequence)

    def charge(self, chunks: Iterable[ScheduledChunk]) -> None:
        """Count the tokens of computed chunks, after their sequences have advanced."""
        for chunk in chunks:
            sequence = chunk.sequence
            tenant = self._active.get(sequence.request.tenant_salt)
            start = max(chunk.start, sequence.num_charged_tokens)  # once, if it was preempted
            if tenant is not None and (num_new := sequence.num_computed_tokens - start) > 0:
                is_output = start >= sequence.num_prompt_tokens
                tenant.served += OUTPUT_WEIGHT * num_new if is_output else num_new
        if len(self._active) == 1:
            (alone,) = self._active.values()
            self._gone = {name: served for name, served in self._gone.items() if served > alone.served}

    def victim(self, head: Sequence, newest_first: Iterable[Sequence], shares: Shares) -> Sequence | None:
        """The running sequence that fairness has preempted for the `head` of the queue, if any.

        It is the newest of the tenant that holds most.
        """
        newest: dict[str, Sequence] = {}
        for sequence in newest_first:
            if sequence.request.priority == head.request.priority:
                newest.setdefault(sequence.request.tenant_salt, sequence)
        newest.pop(head.request.tenant_salt, None)
        order = sorted(newest.values(), key=lambda s: shares.held(self.of(s)), reverse=True)
        return next((victim for victim in order if self._may_take(victim, head, shares)), None)

    def _may_take(self, victim: Sequence, head: Sequence, shares: Shares) -> bool:
        """Whether `head` may have what `victim` holds.

        Its tenant was served no more and will hold no more than the other: that ends at equal shares. Or it
        was served less by more than taking turns costs.
        """
        other, own = self.of(victim), self.of(head)
        left = shares.held(other, -1, -len(victim.pages))
        taken = shares.held(own, 1, pages_for(len(head.tokens)))
        is_turn = other.served - own.served > TURN + len(victim.tokens) + len(head.tokens)
        return is_turn or (other.served >= own.served and left >= taken)

    def first(self, num_sequences: int) -> list[Sequence]:
        """Up to `num_sequences` waiting sequences that are ready, the tenant that was served least first.

        Each counts as served at once, so that tenants alternate.
        """
        if len(self._active) == 1:
            (alone,) = self._active.values()
            return list(itertools.islice(alone.ready(), num_sequences))
        turns = [
            (tenant.served, tenant.num_running, number, tenant.ready())
            for number, tenant in enumerate(self._active.values())
            if tenant.waiting
        ]
        heapq.heapify(turns)
        found: list[Sequence] = []
        while turns and len(found) < num_sequences:
            served, num_running, number, ready = turns[0]
            sequence = next(ready, None)
            if sequence is None:
                heapq.heappop(turns)
                continue
            found.append(sequence)
            cost = max(PAGE_TOKENS, len(sequence.tokens) - sequence.num_charged_tokens)
            heapq.heapreplace(turns, (served + cost, num_running + 1, number, ready))
        return found

    def _floor(self, newcomer: Tenant) -> int:
        """The counter of a tenant that had nothing waiting: the lowest of those that wait."""
        others = [tenant for tenant in self._active.values() if tenant is not newcomer]
        waiting = [tenant.served for tenant in others if tenant.waiting]
        return min(waiting) if waiting else max((tenant.served for tenant in others), default=0)

    def _leave(self, sequence: Sequence) -> None:
        """Keep only the counter of a tenant without sequences, so that it cannot shed it by leaving."""
        tenant = self.of(sequence)
        if tenant.waiting or tenant.num_running:
            return
        del self._active[sequence.request.tenant_salt]
        if not self._active:
            self._gone.clear()
            return
        self._gone[sequence.request.tenant_salt] = tenant.served
        if len(self._gone) > _MAX_GONE:
            del self._gone[min(self._gone, key=self._gone.__getitem__)]
