"""The gateway's metrics: a meter for each request, and the page that Prometheus reads.

Label sets are closed (endpoint, configured model, status class), so every series has a fixed place in
`Cells`: an update is an index and an addition instead of a lock and a dict, and workers add up cell by cell.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.answer import Usage
from gateway.telemetry import instruments as of
from gateway.telemetry.engine_metrics import EngineCollector, EngineSource
from gateway.telemetry.shared_counters import Cells

CONTENT_TYPE = CONTENT_TYPE_LATEST
CLIENT_CLOSED_STATUS = 499


class Metrics:
    """Every series of this worker. `shared_dir` is a folder that all workers of one gateway share."""

    def __init__(self, models: Iterable[str], shared_dir: Path | None = None) -> None:
        """`models` are the configured names, the only values that the label `model` can take beside "-"."""
        names = (of.NO_MODEL, *sorted(set(models)))
        keys = [(e, m) for e in of.ENDPOINTS for m in names if m == of.NO_MODEL or e in of.MODEL_ENDPOINTS]
        gauges = len(of.ENDPOINTS)  # in flight by endpoint: the first cells
        self._starts = {key: gauges + i * of.SERIES_CELLS for i, key in enumerate(keys)}
        layout = hashlib.sha256(repr((keys, of.HISTOGRAMS)).encode()).hexdigest()[:16]
        self._cells = Cells(gauges + len(keys) * of.SERIES_CELLS, shared_dir, layout)
        self._engines: dict[str, EngineSource] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_GatewayCollector(self._cells, self._starts))
        self._registry.register(EngineCollector(self._engines))
        if (
            shared_dir is None
        ):  # with several workers a scrape meets any of them: one process's memory says nothing
            ProcessCollector(registry=self._registry)

    def add_engine(self, model: str, source: EngineSource) -> None:
        """Publish the statistics of `model`'s engine (the newest heartbeat's snapshot)."""
        self._engines[model] = source

    def begin(self, endpoint: str) -> Meter:
        """Count one request in; KeyError when `endpoint` is not one of ENDPOINTS."""
        return Meter(self._cells.values, self._starts, endpoint)

    def render(self) -> bytes:
        """The page for Prometheus, in CONTENT_TYPE."""
        return generate_latest(self._registry)


class Meter:
    """The instruments of one request. Times are time.perf_counter()."""

    __slots__ = (
        "_call_s",
        "_call_started_s",
        "_cells",
        "_endpoint",
        "_last_chunk_s",
        "_start",
        "_started_s",
        "_starts",
    )

    def __init__(
        self, cells: memoryview[float], starts: Mapping[tuple[str, str], int], endpoint: str
    ) -> None:
        """`starts` gives the first cell of a series."""
        self._start = starts[endpoint, of.NO_MODEL]
        self._started_s = time.perf_counter()
        self._cells = cells
        self._starts = starts
        self._endpoint = endpoint
        self._call_started_s = 0.0
        self._call_s = 0.0
        self._last_chunk_s = 0.0
        cells[of.ENDPOINTS.index(endpoint)] += 1

    def call_started(self, model: str, now_s: float) -> None:
        """The request is for `model`; a name that is not configured keeps the label "-"."""
        self._start = self._starts.get((self._endpoint, model), self._start)
        self._call_started_s = now_s

    def chunk(self, now_s: float) -> None:
        """A piece of the answer has come."""
        if self._last_chunk_s:
            self._observe(of.INTER_TOKEN, now_s - self._last_chunk_s)
        else:
            self._observe(of.TTFT, now_s - self._started_s)
        self._last_chunk_s = now_s

    def call_ended(self, now_s: float, usage: Usage | None, error: str) -> None:
        """The model call is over; `error` is "" or one of CALL_ERRORS, anything else counts as "other"."""
        if not self._call_started_s:
            return
        self._call_s += now_s - self._call_started_s
        self._call_started_s = 0.0
        if usage is not None:
            at = self._start + of.TOKENS_OFFSET
            self._cells[at] += usage.prompt_tokens
            self._cells[at + 1] += usage.completion_tokens
            self._cells[at + 2] += usage.cached_tokens
            self._cells[at + 3] += usage.reasoning_tokens
        if error:
            kind = error if error in of.CALL_ERRORS else "other"
            self._cells[self._start + of.ERRORS_OFFSET + of.CALL_ERRORS.index(kind)] += 1

    def end(self, now_s: float, status: int) -> None:
        """The request is over; call it once."""
        self.call_ended(now_s, None, "")
        self._cells[of.ENDPOINTS.index(self._endpoint)] -= 1
        self._cells[self._start + of.REQUESTS_OFFSET + _status_index(status)] += 1
        duration_s = now_s - self._started_s
        self._observe(of.DURATION, duration_s)
        self._observe(of.OVERHEAD, duration_s - self._call_s)

    def _observe(self, histogram: of.Histogram, value: float) -> None:
        at = self._start + histogram.offset
        self._cells[at + bisect_left(histogram.bounds, value)] += 1
        self._cells[at + len(histogram.bounds) + 1] += value


def _status_index(status: int) -> int:
    """Place of a status in STATUSES; redirects, which we never send, would count as 2xx."""
    if status == CLIENT_CLOSED_STATUS:
        return 3
    return 2 if status >= 500 else 1 if status >= 400 else 0


class _GatewayCollector(Collector):
    """Turns cells into Prometheus families; series that nobody has used are left out."""

    def __init__(self, cells: Cells, starts: Mapping[tuple[str, str], int]) -> None:
        self._cells = cells
        self._starts = starts

    def collect(self) -> Iterator[Metric]:
        """All families, summed over the workers."""
        totals = self._cells.totals(gauges=slice(0, len(of.ENDPOINTS)))
        used = {
            key: totals[at : at + of.SERIES_CELLS]
            for key, at in self._starts.items()
            if any(totals[at : at + of.SERIES_CELLS])
        }
        in_flight = GaugeMetricFamily(
            "penstock_requests_in_flight", "Requests being served.", labels=["endpoint"]
        )
        for endpoint, value in zip(of.ENDPOINTS, totals, strict=False):
            in_flight.add_metric([endpoint], value)
        yield in_flight
        yield _counter(
            "penstock_requests", "Requests by outcome.", "status", of.STATUSES, of.REQUESTS_OFFSET, used
        )
        yield _counter("penstock_tokens", "Tokens by kind.", "kind", of.TOKEN_KINDS, of.TOKENS_OFFSET, used)
        yield _counter(
            "penstock_model_call_errors",
            "Failed model calls.",
            "error",
            of.CALL_ERRORS,
            of.ERRORS_OFFSET,
            used,
        )
        for histogram in of.HISTOGRAMS:
            yield _histogram(histogram, used)


_Used = Mapping[tuple[str, str], list[float]]


def _counter(name: str, help_: str, label: str, values: tuple[str, ...], offset: int, used: _Used) -> Metric:
    family = CounterMetricFamily(name, help_, labels=["endpoint", "model", label])
    for key, block in used.items():
        for i, value in enumerate(values):
            if block[offset + i]:
                family.add_metric([*key, value], block[offset + i])
    return family


def _histogram(histogram: of.Histogram, used: _Used) -> Metric:
    family = HistogramMetricFamily(histogram.name, histogram.help, labels=["endpoint", "model"])
    labels = [*map(str, histogram.bounds), "+Inf"]
    for key, block in used.items():
        counts = block[histogram.offset : histogram.offset + len(labels)]
        if any(counts):
            total = block[histogram.offset + len(labels)]
            family.add_metric(key, list(zip(labels, accumulate(counts), strict=True)), total)
    return family
