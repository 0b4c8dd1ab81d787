"""The version of the policies, and the outcomes of reloads, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class PolicySource(Protocol):
    """What is known of the policies."""

    @property
    def version(self) -> str:
        """The version of the current policies."""
        ...

    @property
    def num_reloads(self) -> int:
        """Changes of the version since the start."""
        ...

    @property
    def num_failures(self) -> int:
        """Attempts that left the version as it was."""
        ...


class PolicyCollector(Collector):
    """Calls `state` at each scrape; without it there are no series."""

    def __init__(self) -> None:
        self.state: Callable[[], PolicySource] | None = None

    def collect(self) -> Iterator[Metric]:
        """All series."""
        if self.state is None:
            return
        state = self.state()
        info = GaugeMetricFamily("penstock_policy_info", "Version of the policies.", labels=["version"])
        info.add_metric([state.version], 1)
        yield info
        reloads = CounterMetricFamily("penstock_policy_reloads", "Reloads by outcome.", labels=["outcome"])
        reloads.add_metric(["changed"], state.num_reloads)
        reloads.add_metric(["failed"], state.num_failures)
        yield reloads
