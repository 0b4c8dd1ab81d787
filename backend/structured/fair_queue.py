"""Round-robin queue over tenants: a tenant with many jobs delays only itself."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Job = TypeVar("Job", bound=Hashable)


class FairQueue(Generic[Job]):
    """A FIFO queue of jobs per tenant, with a bound on a tenant's running jobs. Not thread-safe."""

    def __init__(self, max_running_per_tenant: int) -> None:
        self._max_running = max_running_per_tenant
        self._queues: OrderedDict[str, dict[Job, None]] = OrderedDict()  # the next tenant comes first
        self._num_running: Counter[str] = Counter()

    def num_tenants_with(self, tenant: str) -> int:
        """Return the number of tenants that have jobs, counting this one in any case."""
        return len(self._queues.keys() | self._num_running.keys() | {tenant})

    def num_jobs(self, tenant: str) -> int:
        """Return the tenant's number of jobs, queued and running."""
        return len(self._queues.get(tenant, ())) + self._num_running[tenant]

    def put(self, tenant: str, job: Job) -> None:
        """Append the job to the tenant's queue unless it is in it."""
        self._queues.setdefault(tenant, {})[job] = None

    def take(self) -> tuple[str, Job] | None:
        """Start the next job and return (tenant, job), or None if none may run. Follow it by `release`."""
        for tenant, jobs in self._queues.items():
            if self._num_running[tenant] < self._max_running:
                job = next(iter(jobs))
                del jobs[job]
                self._queues.move_to_end(tenant)
                if not jobs:
                    del self._queues[tenant]
                self._num_running[tenant] += 1
                return tenant, job
        return None

    def release(self, tenant: str) -> None:
        """Mark one running job of the tenant as finished."""
        self._num_running[tenant] -= 1
        if not self._num_running[tenant]:
            del self._num_running[tenant]
