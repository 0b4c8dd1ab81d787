"""The engines' statistics as Prometheus metrics, from the snapshot in each engine's latest heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from backend.server.client import Refusal
from backend.server.engine_messages import (
    COMPILE_BOUNDS_S,
    INTER_TOKEN_BOUNDS_S,
    MASK_BOUNDS_S,
    STEP_TIME_BOUNDS_S,
    STEP_TOKENS_BOUNDS,
    TTFT_BOUNDS_S,
    EngineStats,
)
from backend.server.quote import wait_s
from policies.names import split_replica

LABELS: Final = ("model", "replica")  # the number of a model's engine process, from 0


class EngineSource(Protocol):
    """The part of an engine client that metrics need."""

    @property
    def ready(self) -> bool:
        """True when the engine answers: connected, and its heartbeat is recent."""
        ...

    def is_asleep(self) -> bool:
        """True while no process runs, as the load asks for none."""
        ...

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the last heartbeat; infinite before the first."""
        ...

    @property
    def refusal(self) -> Refusal | None:
        """Why an engine that answers is not asked."""
        ...

    @property
    def stats(self) -> EngineStats | None:
        """The latest snapshot."""
        ...


GAUGES: Final = {
    "num_waiting": ("penstock_engine_queue_requests", "Sequences waiting."),
    "waiting_tokens": ("penstock_engine_waiting_tokens", "Prompt tokens not computed yet."),
    "admission_interval_s": (
        "penstock_engine_admission_interval_seconds",
        "Measured time between two admissions from the queue.",
    ),
    "prefill_s_per_token": (
        "penstock_engine_prefill_seconds_per_token",
        "Measured time per prompt token; 0: not measured yet.",
    ),
    "decode_step_s": (
        "penstock_engine_decode_step_seconds",
        "Measured time of a decode step at the present batch size; 0: not measured yet.",
    ),
    "num_running": ("penstock_engine_running_requests", "Sequences running."),
    "max_running": (
        "penstock_engine_max_running_requests",
        "Sequences that can run at once: `max_running`, or fewer where recurrent states do not fit.",
    ),
    "free_pages": ("penstock_engine_free_pages", "KV pages free or evictable."),
    "total_pages": ("penstock_engine_total_pages", "KV pages."),
    "adapters_on_device": ("penstock_engine_adapters_on_device", "Adapters ready for the next step."),
    "cached_pages": ("penstock_engine_cached_pages", "KV pages held by the prefix tree, evictable."),
    "state_checkpoints": (
        "penstock_engine_state_checkpoints",
        "Recurrent states kept for prefixes that come again.",
    ),
}
COUNTERS: Final = {
    "steps_total": ("penstock_engine_steps", "Steps of the engine loop."),
    "work_s_total": (
        "penstock_engine_work_seconds",
        "Time that steps worked: of the thread on a CPU, where a busy machine does not lengthen it.",
    ),
    "prompt_tokens_total": ("penstock_engine_prompt_tokens", "Prompt tokens computed, without prefix hits."),
    "prefix_hit_tokens_total": (
        "penstock_engine_prefix_hit_tokens",
        "Prompt tokens found in the prefix tree.",
    ),
    "generated_tokens_total": ("penstock_engine_generated_tokens", "Tokens generated."),
    "drafts_total": ("penstock_engine_drafts", "Drafts verified: one per sequence and step."),
    "forced_tokens_total": (
        "penstock_engine_forced_tokens",
        "Output tokens that a grammar forced.",
    ),
    "adapter_loads_total": ("penstock_engine_adapter_loads", "Adapters copied to the device."),
    "preemptions_total": ("penstock_engine_preemptions", "Sequences preempted."),
}
# By position of the token in its draft, from 1; mean accepted length = 1 + accepted tokens / drafts.
POSITIONS: Final = {
    "drafted_tokens_total": ("penstock_engine_drafted_tokens", "Draft tokens verified."),
    "accepted_tokens_total": ("penstock_engine_accepted_tokens", "Draft tokens accepted."),
}
# (name, help, label beside the model, counts by its values)
LABELLED: Final[tuple[tuple[str, str, str, Callable[[EngineStats], Mapping[str, float]]], ...]] = (
    (
        "penstock_engine_requests",
        "Sequences ended, by reason.",
        "finish_reason",
        lambda stats: stats.requests_total,
    ),
    (
        "penstock_engine_adapter_requests",
        "Sequences by requested adapter, for adapters that are loaded.",
        "adapter",
        lambda stats: stats.adapter_requests_total,
    ),
    (
        "penstock_engine_drafter_tokens",
        "Draft tokens verified, by the drafter that proposed them.",
        "drafter",
        lambda stats: {name: drafted for name, (drafted, _) in stats.drafter_tokens_total.items()},
    ),
    (
        "penstock_engine_drafter_accepted_tokens",
        "Draft tokens accepted, by the drafter that proposed them.",
        "drafter",
        lambda stats: {name: accepted for name, (_, accepted) in stats.drafter_tokens_total.items()},
    ),
    (
        "penstock_engine_machine_seconds",
        "Wall time of the engine: `work` is shared among the sequences of steps, the rest is `idle`.",
        "state",
        lambda stats: {"work": stats.machine_work_s_total, "idle": stats.machine_idle_s_total},
    ),
)
# (name, help, field of the cumulative counts, field of the sum, name of the bounds)
HISTOGRAMS: Final = (
    (
        "penstock_engine_step_seconds",
        "Time of one step.",
        "step_time_s",
        "step_time_sum_s",
        STEP_TIME_BOUNDS_S,
    ),
    (
        "penstock_engine_step_tokens",
        "Tokens computed in one step.",
        "step_tokens",
        "step_tokens_sum",
        STEP_TOKENS_BOUNDS,
    ),
    (
        "penstock_engine_time_to_first_token_seconds",
        "From arrival in the engine to the first token.",
        "ttft_s",
        "ttft_sum_s",
        TTFT_BOUNDS_S,
    ),
    (
        "penstock_engine_inter_token_seconds",
        "Time between two tokens of a sequence.",
        "inter_token_s",
        "inter_token_sum_s",
        INTER_TOKEN_BOUNDS_S,
    ),
    (
        "penstock_engine_grammar_compile_seconds",
        "Time to compile a grammar, including refused ones.",
        "grammar_compile_s",
        "grammar_compile_sum_s",
        COMPILE_BOUNDS_S,
    ),
    (
        "penstock_engine_grammar_mask_seconds",
        "Time of a step spent on grammar masks.",
        "grammar_mask_s",
        "grammar_mask_sum_s",
        MASK_BOUNDS_S,
    ),
)


class EngineCollector(Collector):
    """Reads `sources` at every scrape; models may be added at any time."""

    def __init__(self, sources: Mapping[str, EngineSource]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """`up` and age of every engine that is to run, and the statistics of those that have reported."""
        up = GaugeMetricFamily("penstock_engine_up", "1: the engine is ready.", labels=LABELS)
        age = GaugeMetricFamily(
            "penstock_engine_heartbeat_age_seconds", "Time since the last heartbeat.", labels=LABELS
        )
        for model, source in self._sources.items():
            if source.is_asleep():  # not down: a person need not know
                continue
            up.add_metric(split_replica(model), float(source.ready))
            age.add_metric(split_replica(model), source.heartbeat_age_s)
        yield up
        yield age
        yield self._refused()
        stats = {model: found for model, source in self._sources.items() if (found := source.stats)}
        if stats:
            # The gauges of a dead engine are stale; its counters stay until it is back.
            yield from _gauges({model: found for model, found in stats.items() if self._sources[model].ready})
            yield from _families(stats)

    def _refused(self) -> Metric:
        refused = GaugeMetricFamily(
            "penstock_engine_refused",
            "1: the engine answers, but is not asked: `reason` names what is not as it should be.",
            labels=[*LABELS, "reason"],
        )
        for model, source in self._sources.items():
            if source.refusal is not None:
                refused.add_metric([*split_replica(model), source.refusal.reason], 1.0)
        return refused


def _gauges(stats: Mapping[str, EngineStats]) -> Iterator[Metric]:
    for field, (name, help_) in GAUGES.items():
        gauge = GaugeMetricFamily(name, help_, labels=LABELS)
        for model, snapshot in stats.items():
            gauge.add_metric(split_replica(model), getattr(snapshot, field))
        yield gauge
    queue = GaugeMetricFamily(
        "penstock_engine_queue_seconds",
        "Predicted time that a new request waits, without its own prompt: the queue and one step.",
        labels=LABELS,
    )
    for model, snapshot in stats.items():
        queue.add_metric(split_replica(model), wait_s(snapshot))
    yield queue


def _families(stats: Mapping[str, EngineStats]) -> Iterator[Metric]:
    for field, (name, help_) in COUNTERS.items():
        counter = CounterMetricFamily(name, help_, labels=LABELS)
        for model, snapshot in stats.items():
            counter.add_metric(split_replica(model), getattr(snapshot, field))
        yield counter
    yield from _positions(stats)
    for name, help_, label, values in LABELLED:
        counter = CounterMetricFamily(name, help_, labels=[*LABELS, label])
        for model, snapshot in stats.items():
            for value, count in values(snapshot).items():
                counter.add_metric([*split_replica(model), value], count)
        yield counter
    for name, help_, counts, total, bounds in HISTOGRAMS:
        histogram = HistogramMetricFamily(name, help_, labels=LABELS)
        for model, snapshot in stats.items():
            if getattr(snapshot, counts):
                histogram.add_metric(
                    split_replica(model),
                    _buckets(getattr(snapshot, counts), bounds),
                    getattr(snapshot, total),
                )
        yield histogram


def _positions(stats: Mapping[str, EngineStats]) -> Iterator[Metric]:
    for field, (name, help_) in POSITIONS.items():
        counter = CounterMetricFamily(name, help_, labels=[*LABELS, "position"])
        for model, snapshot in stats.items():
            counts: list[int] = getattr(snapshot, field)
            for index, value in enumerate(counts):
                label = f"{index + 1}+" if index + 1 == len(counts) else str(index + 1)
                counter.add_metric([*split_replica(model), label], value)
        yield counter
    length = GaugeMetricFamily(
        "penstock_engine_mean_accepted_length",
        "Tokens per verified draft since the engine's start: 1 + accepted tokens / drafts.",
        labels=LABELS,
    )
    for model, snapshot in stats.items():
        if snapshot.drafts_total:
            accepted = sum(snapshot.accepted_tokens_total)
            length.add_metric(split_replica(model), 1 + accepted / snapshot.drafts_total)
    yield length


def _buckets(cumulative: Sequence[int], bounds: Sequence[float]) -> list[tuple[str, float]]:
    """Pairs of upper bound and cumulative count; the last bound is "+Inf"."""
    return list(zip([*map(str, bounds), "+Inf"], map(float, cumulative), strict=True))
