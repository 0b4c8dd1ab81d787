"""Whose turn it is: tenants take turns, so that one who asks for much lets only itself wait."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Job = TypeVar("Job", bound=Hashable)


class Turns(Generic[Job]):
    """A line of jobs for each tenant, and a limit on how many of one are at work. One thread at a time."""

    def __init__(self, max_at_work: int) -> None:
        self._max_at_work = max_at_work
        self._lines: OrderedDict[str, dict[Job, None]] = OrderedDict()  # whose turn is next comes first
        self._at_work: Counter[str] = Counter()

    def num_tenants_with(self, tenant: str) -> int:
        """Those that have jobs, and this one."""
        return len(self._lines.keys() | self._at_work.keys() | {tenant})

    def num_jobs(self, tenant: str) -> int:
        """Of this tenant, in the line and at work."""
        return len(self._lines.get(tenant, ())) + self._at_work[tenant]

    def put(self, tenant: str, job: Job) -> None:
        """To the end of the tenant's line, if it is not there."""
        self._lines.setdefault(tenant, {})[job] = None

    def take(self) -> tuple[str, Job] | None:
        """Whose turn it is and the job, to be followed by `release`; None when nobody's may begin."""
        for tenant, line in self._lines.items():
            if self._at_work[tenant] < self._max_at_work:
                job = next(iter(line))
                del line[job]
                self._lines.move_to_end(tenant)
                if not line:
                    del self._lines[tenant]
                self._at_work[tenant] += 1
                return tenant, job
        return None

    def release(self, tenant: str) -> None:
        """A job of this tenant's has ended."""
        self._at_work[tenant] -= 1
        if not self._at_work[tenant]:
            del self._at_work[tenant]
