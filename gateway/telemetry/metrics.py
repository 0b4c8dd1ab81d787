"""The gateway's metrics: one meter per request, and the page that Prometheus scrapes.

Label values are a closed set (endpoint, configured model, status class), so every series has a fixed index
in `SharedCounters`. An update there takes 0.05 µs; prometheus_client's `labels().inc()`, with a lock and two
dicts, takes 1.0 µs, or 1.5 µs in its multiprocess mode. Observing a histogram, which a stream does for every
chunk, takes 0.17 µs instead of 1.4 or 2.4 µs. (timeit, best of 7, Python 3.11, prometheus_client 0.26.)
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from backend.classifiers.measures import wilson
from gateway.answer import Usage
from gateway.telemetry import instruments, named_series
from gateway.telemetry.engine_metrics import EngineCollector, EngineSource
from gateway.telemetry.named_series import NamedSeries
from gateway.telemetry.policy_metrics import PolicyCollector, PolicySource
from gateway.telemetry.shared_counters import SharedCounters

CONTENT_TYPE = CONTENT_TYPE_LATEST
CLIENT_CLOSED_STATUS = 499


class Metrics:
    """All series of this worker, and their sums over the workers that share its counter files."""

    def __init__(
        self,
        models: Iterable[str],
        counter_fds: Sequence[int] = (),
        worker: int = 0,
        num_spare: int = 0,
        names_fd: int | None = None,
    ) -> None:
        """`models` are the configured names, the only values of the label `model` apart from "-".

        `counter_fds`: see SharedCounters; all workers must give the same models in the same order.
        `num_spare`: how many `add_models` can add. `names_fd`: see SharedNames.
        """
        names = tuple(dict.fromkeys(models))
        self._gauges = len(instruments.ENDPOINTS)  # requests in flight by endpoint come first, then faults
        self._starts: dict[tuple[str, str], int] = {}
        self._num_free = len(names) + num_spare
        named_at = self._gauges + len(instruments.FAULTS)  # where it is with any number of models
        self._first_block = named_at + named_series.SIZE
        size = self._offset(self._num_free)
        for number, endpoint in enumerate(instruments.ENDPOINTS):
            start = self._first_block + number * instruments.BLOCK_SIZE
            self._starts[endpoint, instruments.NO_MODEL] = start
        self.add_models(names)
        self._counters = SharedCounters(size, self._gauges, counter_fds, worker)
        self.series = NamedSeries(self._counters.values, named_at, names_fd)
        self._engines: dict[str, EngineSource] = {}
        self._policies = PolicyCollector()
        self._registry = CollectorRegistry()
        self._gateway = _GatewayCollector(self._counters, self._starts, self.series)
        self._registry.register(self._gateway)
        self._registry.register(EngineCollector(self._engines))
        self._registry.register(self._policies)
        if not counter_fds:  # a scrape reaches one of several workers, whose memory alone would mislead
            ProcessCollector(registry=self._registry)

    def add_models(self, models: Iterable[str]) -> None:
        """Count these models' requests from now on. Those beyond the spare ones keep the label "-"."""
        for model in models:
            if self._num_free and (instruments.ENDPOINTS[0], model) not in self._starts:
                known = len(self._starts) - len(instruments.ENDPOINTS)
                start = self._offset(known // len(instruments.MODEL_ENDPOINTS))
                for number, endpoint in enumerate(instruments.MODEL_ENDPOINTS):
                    self._starts[endpoint, model] = start + number * instruments.BLOCK_SIZE
                self._num_free -= 1

    def _offset(self, num_models: int) -> int:
        """Index of the first counter after those of `num_models` models."""
        blocks = len(instruments.ENDPOINTS) + num_models * len(instruments.MODEL_ENDPOINTS)
        return self._first_block + blocks * instruments.BLOCK_SIZE

    def set_engines(self, engines: Mapping[str, EngineSource]) -> None:
        """Publish the statistics of these engines, by model, and of no others."""
        self._engines.clear()
        self._engines.update(engines)

    def set_policies(self, state: Callable[[], PolicySource]) -> None:
        """Publish the version of the policies and how often it has changed."""
        self._policies.state = state

    def begin(self, endpoint: str) -> Meter:
        """Count a request as in flight. KeyError when `endpoint` is not one of ENDPOINTS."""
        return Meter(self._counters.values, self._starts, endpoint)

    def cache_judged(self, model: str, verdict: str) -> None:
        """A semantic hit of `model` was judged. `verdict`: one of CACHE_VERDICTS."""
        start = self._starts.get(("chat", model), self._starts["chat", instruments.NO_MODEL])
        at = instruments.VERDICTS_OFFSET + instruments.CACHE_VERDICTS.index(verdict)
        self._counters.values[start + at] += 1

    def upstream_left_out(self, model: str, trouble: str) -> None:
        """An upstream of `model` is not asked for a while. `trouble`: one of UPSTREAM_TROUBLES."""
        start = self._starts.get(("chat", model), self._starts["chat", instruments.NO_MODEL])
        at = instruments.TROUBLES_OFFSET + instruments.UPSTREAM_TROUBLES.index(trouble)
        self._counters.values[start + at] += 1

    def upstream_failed(self, model: str, kind: str) -> None:
        """One call of an upstream of `model` failed. `kind`: one of UPSTREAM_FAILURES."""
        start = self._starts.get(("chat", model), self._starts["chat", instruments.NO_MODEL])
        self._counters.values[start + instruments.FAILURES_OFFSET + _FAILURE_AT[kind]] += 1

    def target_began(self, name: str, took_s: float) -> None:
        """The first content of a target, "model at place", has come."""
        start = self._starts.get(("chat", name))
        if start is not None:
            histogram, values = instruments.TARGET_TTFT, self._counters.values
            values[start + histogram.offset + bisect_left(histogram.bounds, took_s)] += 1
            values[start + histogram.offset + len(histogram.bounds) + 1] += took_s

    def fault(self, part: str, kind: str) -> None:
        """Something went wrong beside the requests: one of FAULTS. Call it in one thread for each."""
        self._counters.values[self._gauges + instruments.FAULTS.index((part, kind))] += 1

    def workers(self) -> list[tuple[int, int, int]]:
        """Number, process id and requests in flight of each worker."""
        read = self._counters.gauges(len(instruments.ENDPOINTS))
        return [(number, pid, round(sum(gauges))) for number, (pid, gauges) in enumerate(read)]

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Name, labels and value of each sample of the gateway itself."""
        for family in self._gateway.collect():
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def render(self) -> bytes:
        """All metrics in Prometheus' text format, of type CONTENT_TYPE."""
        return generate_latest(self._registry)


class Meter:
    """The instruments of one request. Times are those of time.perf_counter()."""

    __slots__ = (
        "_call_s",
        "_call_started_s",
        "_counters",
        "_endpoint",
        "_last_chunk_s",
        "_start",
        "_started_s",
        "_starts",
    )

    def __init__(
        self, counters: memoryview[float], starts: Mapping[tuple[str, str], int], endpoint: str
    ) -> None:
        """`starts`: index of each (endpoint, model) block in `counters`."""
        self._start = starts[endpoint, instruments.NO_MODEL]
        self._started_s = time.perf_counter()
        self._counters = counters
        self._starts = starts
        self._endpoint = endpoint
        self._call_started_s = 0.0
        self._call_s = 0.0
        self._last_chunk_s = 0.0
        counters[instruments.ENDPOINTS.index(endpoint)] += 1

    def call_started(self, model: str, now_s: float) -> None:
        """The model call begins. A `model` that is not configured keeps the label "-"."""
        self._start = self._starts.get((self._endpoint, model), self._start)
        self._call_started_s = now_s

    def cache_looked_up(self, model: str, outcome: str) -> None:
        """The cache was asked. `outcome`: one of CACHE_OUTCOMES. The request counts as `model`'s now."""
        self._start = self._starts.get((self._endpoint, model), self._start)
        at = instruments.CACHE_OFFSET + instruments.CACHE_OUTCOMES.index(outcome)
        self._counters[self._start + at] += 1

    def cache_guarded(self, model: str, guard: str) -> None:
        """A guard stopped the nearest stored answer. `guard`: one of CACHE_GUARDS."""
        at = instruments.CACHE_GUARDS_OFFSET + instruments.CACHE_GUARDS.index(guard)
        self._counters[self._starts.get((self._endpoint, model), self._start) + at] += 1

    def screened(self, model: str, check: str, outcome: str, language: str = "") -> None:
        """A guardrail found something: the labels are one of GUARDRAIL_SERIES."""
        at = instruments.GUARDRAILS_OFFSET + _GUARDRAIL_AT[check, outcome, language]
        self._counters[self._starts.get((self._endpoint, model), self._start) + at] += 1

    def signal_unavailable(self, signal: str) -> None:
        """A rule needed it, and the encoder did not answer. `signal`: one of ENCODER_SIGNALS."""
        at = instruments.SIGNALS_OFFSET + instruments.ENCODER_SIGNALS.index(signal)
        self._counters[self._start + at] += 1

    def retried(self, cause: str) -> None:
        """An upstream is asked again: its call failed, or is slow. `cause`: one of RETRY_CAUSES."""
        self._counters[self._start + instruments.RETRIES_OFFSET + instruments.RETRY_CAUSES.index(cause)] += 1

    def chunk(self, now_s: float) -> None:
        """A piece of the answer has arrived."""
        if self._last_chunk_s:
            self._observe(instruments.INTER_TOKEN, now_s - self._last_chunk_s)
        else:
            self._observe(instruments.TTFT, now_s - self._started_s)
        self._last_chunk_s = now_s

    def call_ended(self, now_s: float, usage: Usage | None, error: str) -> None:
        """The model call is over. `error`: "" or one of CALL_ERRORS; anything else counts as "other"."""
        if not self._call_started_s:
            return
        self._call_s += now_s - self._call_started_s
        self._call_started_s = 0.0
        if usage is not None:
            at = self._start + instruments.TOKENS_OFFSET
            self._counters[at] += usage.prompt_tokens
            self._counters[at + 1] += usage.completion_tokens
            self._counters[at + 2] += usage.cached_tokens
            self._counters[at + 3] += usage.reasoning_tokens
            if usage.is_estimated:
                self._counters[at + 4] += usage.prompt_tokens + usage.completion_tokens
        if error:
            kind = error if error in instruments.CALL_ERRORS else "other"
            self._counters[self._start + instruments.ERRORS_OFFSET + instruments.CALL_ERRORS.index(kind)] += 1

    @property
    def elapsed_s(self) -> float:
        """Since the request began."""
        return time.perf_counter() - self._started_s

    def end(self, now_s: float, status: int, *, is_broken: bool = False) -> None:
        """The request is over. Call it once. `is_broken`: with an error after its answer had begun."""
        self.call_ended(now_s, None, "")
        self._counters[
            self._start + instruments.REQUESTS_OFFSET + (4 if is_broken else status_index(status))
        ] += 1
        duration_s = now_s - self._started_s
        self._observe(instruments.DURATION, duration_s)
        self._observe(instruments.OVERHEAD, duration_s - self._call_s)
        # Last, so that what others read without requests in flight is whole.
        self._counters[instruments.ENDPOINTS.index(self._endpoint)] -= 1

    def _observe(self, histogram: instruments.Histogram, value: float) -> None:
        at = self._start + histogram.offset
        self._counters[at + bisect_left(histogram.bounds, value)] += 1
        self._counters[at + len(histogram.bounds) + 1] += value


def status_index(status: int) -> int:
    """Index of a status in STATUSES. Redirects, which we never send, would count as 2xx."""
    if status == CLIENT_CLOSED_STATUS:
        return 3
    return 2 if status >= 500 else 1 if status >= 400 else 0


class _GatewayCollector(Collector):
    """Turns counters into Prometheus metrics; unused series are left out."""

    def __init__(
        self, counters: SharedCounters, starts: Mapping[tuple[str, str], int], series: NamedSeries
    ) -> None:
        self._counters = counters
        self._starts = starts
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """All metrics, summed over the workers."""
        totals = self._counters.totals()
        used = {
            key: totals[at : at + instruments.BLOCK_SIZE]
            for key, at in self._starts.items()
            if any(totals[at : at + instruments.BLOCK_SIZE])
        }
        in_flight = GaugeMetricFamily(
            "penstock_requests_in_flight", "Requests being served.", labels=["endpoint"]
        )
        for endpoint, value in zip(instruments.ENDPOINTS, totals, strict=False):
            in_flight.add_metric([endpoint], value)
        yield in_flight
        faults = CounterMetricFamily(
            "penstock_faults",
            "What goes wrong beside the requests: unreadable values of Redis, background work begun again.",
            labels=["part", "fault"],
        )
        for labels, value in zip(instruments.FAULTS, totals[len(instruments.ENDPOINTS) :], strict=False):
            faults.add_metric(labels, value)
        yield faults
        for counter in _COUNTERS:
            yield _counter(*counter, used)
        yield _false_hits(used)
        yield _guardrails(used)
        names = [key for key in used if " " in key[1]]
        targets = {_model_and_place(key[1]): used.pop(key) for key in names}
        for histogram in instruments.HISTOGRAMS:
            yield _histogram(histogram, used)
        yield from self._series.collect(totals)
        yield _histogram(instruments.TARGET_TTFT, targets, ("model", "target"))


_COUNTERS: Sequence[tuple[str, str, str, tuple[str, ...], int]] = (
    (
        "penstock_requests",
        "Requests by outcome.",
        "status",
        instruments.STATUSES,
        instruments.REQUESTS_OFFSET,
    ),
    (
        "penstock_cache_requests",
        "Chat requests of models with a cache, by where the answer came from.",
        "outcome",
        instruments.CACHE_OUTCOMES,
        instruments.CACHE_OFFSET,
    ),
    (
        "penstock_cache_guards",
        "Chat requests that were not compared by meaning, or whose nearest stored answer a guard stopped.",
        "guard",
        instruments.CACHE_GUARDS,
        instruments.CACHE_GUARDS_OFFSET,
    ),
    (
        "penstock_cache_verdicts",
        "Answers served by meaning that were judged, by feedback or by asking the model again.",
        "verdict",
        instruments.CACHE_VERDICTS,
        instruments.VERDICTS_OFFSET,
    ),
    (
        "penstock_tokens",
        "Tokens by kind.",
        "kind",
        instruments.TOKEN_KINDS,
        instruments.TOKENS_OFFSET,
    ),
    (
        "penstock_model_call_errors",
        "Failed model calls.",
        "error",
        instruments.CALL_ERRORS,
        instruments.ERRORS_OFFSET,
    ),
    (
        "penstock_upstream_retries",
        "Calls of upstreams that were made again, by what failed before; hedge: it was slow.",
        "cause",
        instruments.RETRY_CAUSES,
        instruments.RETRIES_OFFSET,
    ),
    (
        "penstock_upstream_failures",
        "Calls of upstreams that failed, each attempt counted, by kind.",
        "kind",
        instruments.UPSTREAM_FAILURES,
        instruments.FAILURES_OFFSET,
    ),
    (
        "penstock_upstream_ejections",
        "How often an upstream was not asked for a while, by what was wrong.",
        "trouble",
        instruments.UPSTREAM_TROUBLES,
        instruments.TROUBLES_OFFSET,
    ),
    (
        "penstock_signals_unavailable",
        "Signals of conditions that could not be read, as the encoder did not answer.",
        "signal",
        instruments.ENCODER_SIGNALS,
        instruments.SIGNALS_OFFSET,
    ),
)
"""Name, help, the label beside endpoint and model, its values, and their offset in a block."""

_Used = Mapping[tuple[str, str], list[float]]


def _counter(name: str, help_: str, label: str, values: tuple[str, ...], offset: int, used: _Used) -> Metric:
    family = CounterMetricFamily(name, help_, labels=["endpoint", "model", label])
    for key, block in used.items():
        for i, value in enumerate(values):
            if block[offset + i]:
                family.add_metric([*key, value], block[offset + i])
    return family


_FAILURE_AT = {kind: at for at, kind in enumerate(instruments.UPSTREAM_FAILURES)}
_GUARDRAIL_AT = {labels: at for at, labels in enumerate(instruments.GUARDRAIL_SERIES)}


def _guardrails(used: _Used) -> Metric:
    family = CounterMetricFamily(
        "penstock_guardrail_verdicts",
        "What guardrails found, by what followed.",
        labels=["endpoint", "model", "check", "outcome", "language"],
    )
    for key, block in used.items():
        for at, labels in enumerate(instruments.GUARDRAIL_SERIES, instruments.GUARDRAILS_OFFSET):
            if block[at]:
                family.add_metric([*key, *labels], block[at])
    return family


def _false_hits(used: _Used) -> Metric:
    """The share of judged hits that were wrong, and its 95 % interval."""
    family = GaugeMetricFamily(
        "penstock_cache_false_hit_rate",
        "Share of judged semantic hits that were wrong; low and high: its 95 % interval (Wilson).",
        labels=["model", "value"],
    )
    for (endpoint, model), block in used.items():
        right, wrong = block[instruments.VERDICTS_OFFSET : instruments.VERDICTS_OFFSET + 2]
        if endpoint == "chat" and right + wrong:
            low, high = wilson(int(wrong), int(right + wrong))
            for name, value in (("mean", wrong / (right + wrong)), ("low", low), ("high", high)):
                family.add_metric([model, name], value)
    return family


def _model_and_place(name: str) -> tuple[str, str]:
    model, _, place = name.partition(" at ")
    return model, place


def _histogram(
    histogram: instruments.Histogram, used: _Used, names: Sequence[str] = ("endpoint", "model")
) -> Metric:
    family = HistogramMetricFamily(histogram.name, histogram.help, labels=names)
    labels = [*map(str, histogram.bounds), "+Inf"]
    for key, block in used.items():
        counts = block[histogram.offset : histogram.offset + len(labels)]
        if any(counts):
            total = block[histogram.offset + len(labels)]
            family.add_metric(key, list(zip(labels, accumulate(counts), strict=True)), total)
    return family
