"""Series of each tenant and each route: names that all workers number alike, and counters for each."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.telemetry.instruments import NO_MODEL, STATUSES, TOKEN_KINDS
from policies.tenants import Limits

logger = logging.getLogger(__name__)

KINDS: Final = ("tenant", "route")
MAX_NAMES: Final = 200
"""Names of each kind that have a block; all others share the last one, `other`."""
OTHER: Final = "other"
TOTALS: Final = (
    ("fallbacks", "Models that failed and were followed by another one."),
    ("cost_usd", "What requests cost."),
    ("machine_seconds", "Work of our engines."),
)
AMOUNTS: Final = len(TOKEN_KINDS) + len(TOTALS)
LIMITS: Final = Limits.__struct_fields__
_LIMITS_AT: Final = len(STATUSES) + AMOUNTS
BLOCK_SIZE: Final = _LIMITS_AT + len(LIMITS)
SIZE: Final = len(KINDS) * (MAX_NAMES + 1) * BLOCK_SIZE


class SharedNames:
    """Names in the order in which any worker has met them; none is ever moved or forgotten."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: a file that all workers have; None: there is one worker."""
        self._fd = fd
        self._num_read = 0
        self.known: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}

    def number(self, kind: str, name: str) -> int:
        """The same in all workers; MAX_NAMES for the names beyond these."""
        known = self.known[kind]
        found = known.get(name)
        if found is None and len(known) < MAX_NAMES:
            try:
                self._add(kind, name)
            except OSError as error:  # no memory, or a limit on the size of files
                logger.error("a name of the metrics cannot be shared: %s", error)
        return known.get(name, MAX_NAMES) if found is None else found

    def read(self) -> None:
        """Learn what other workers have added."""
        if self._fd is None:
            return
        content = os.pread(self._fd, os.fstat(self._fd).st_size - self._num_read, self._num_read)
        self._num_read += len(content)
        for entry in content.split(b"\0")[:-1]:
            kind, _, name = entry.decode().partition(" ")
            self.known[kind][name] = len(self.known[kind])

    def _add(self, kind: str, name: str) -> None:
        known = self.known[kind]
        if self._fd is None:
            known[name] = len(known)
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX)  # of this process; the kernel frees it when that dies
        try:
            self.read()
            if name not in known and len(known) < MAX_NAMES:
                os.pwrite(self._fd, f"{kind} {name}\0".encode(), self._num_read)
                self.read()
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)


class NamedSeries:
    """The blocks of one worker, in its counters."""

    def __init__(self, counters: memoryview[float], start: int, names_fd: int | None = None) -> None:
        """`start`: index of the first of SIZE counters."""
        self._counters = counters
        self._start = start
        self._names = SharedNames(names_fd)
        self.limits: Mapping[str, Mapping[str, float]] = {}  # of the policies, by tenant

    def add_tenants(self, names: Iterable[str]) -> None:
        """Have series for these, as long as there are any left."""
        for name in names:
            self._names.number("tenant", name)

    def count(self, tenant: str, route: str, status: int, amounts: Sequence[float]) -> None:
        """Count a request that has ended. `status`: an index of STATUSES; `amounts`: by kind, then TOTALS."""
        counters = self._counters
        for kind, name in (("tenant", tenant), ("route", route or NO_MODEL)):
            at = self._block(kind, self._names.number(kind, name))
            counters[at + status] += 1
            for index, amount in enumerate(amounts, at + len(STATUSES)):
                if amount:
                    counters[index] += amount

    def refused(self, tenant: str, limit: str) -> None:
        """Count a request beyond a limit. `limit`: one of LIMITS."""
        at = self._block("tenant", self._names.number("tenant", tenant))
        self._counters[at + _LIMITS_AT + LIMITS.index(limit)] += 1

    def collect(self, totals: Sequence[float]) -> Iterator[Metric]:
        """All series, of the counters' sums over the workers."""
        self._names.read()
        given = GaugeMetricFamily(
            "penstock_tenant_limit", "Limits of the policies.", labels=["tenant", "limit"]
        )
        for tenant in self.limits.keys() & self._names.known["tenant"].keys():
            for limit, amount in self.limits[tenant].items():
                given.add_metric([tenant, limit], amount)
        yield given
        for kind in KINDS:
            names = {**self._names.known[kind], OTHER: MAX_NAMES}
            blocks = {name: totals[at : at + BLOCK_SIZE] for name, at in self._blocks(kind, names)}
            yield _labelled(
                f"penstock_{kind}_requests", "Requests by outcome.", (kind, "status"), STATUSES, blocks, 0
            )
            tokens_at = len(STATUSES)
            yield _labelled(
                f"penstock_{kind}_tokens", "Tokens.", (kind, "kind"), TOKEN_KINDS, blocks, tokens_at
            )
            for at, (name, help_) in enumerate(TOTALS, tokens_at + len(TOKEN_KINDS)):
                yield _labelled(f"penstock_{kind}_{name}", help_, (kind,), ("",), blocks, at)
            if kind == "tenant":
                help_, labels = "Requests beyond a limit.", ("tenant", "limit")
                yield _labelled("penstock_tenant_refusals", help_, labels, LIMITS, blocks, _LIMITS_AT)

    def _blocks(self, kind: str, names: dict[str, int]) -> Iterator[tuple[str, int]]:
        yield from ((name, self._block(kind, number)) for name, number in names.items())

    def _block(self, kind: str, number: int) -> int:
        return self._start + (KINDS.index(kind) * (MAX_NAMES + 1) + number) * BLOCK_SIZE


def _labelled(
    name: str,
    help_: str,
    labels: tuple[str, ...],
    values: tuple[str, ...],
    blocks: dict[str, Sequence[float]],
    offset: int,
) -> Metric:
    family = CounterMetricFamily(name, help_, labels=labels)
    for key, block in blocks.items():
        for at, value in enumerate(values, offset):
            if block[at]:
                family.add_metric([key, value][: len(labels)], block[at])
    return family
