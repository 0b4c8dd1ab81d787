"""An engine's snapshot becomes Prometheus metrics; a missing engine is down."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
from gateway.telemetry.metrics import Metrics
from tests.gateway.telemetry.test_metrics import sample


@dataclass
class Source:
    ready: bool = True
    heartbeat_age_s: float = 0.25
    refusal: Refusal | None = None
    stats: EngineStats | None = None
    sleeps: bool = False

    def is_asleep(self) -> bool:
        return self.sleeps


def counts(bounds: tuple[float, ...]) -> list[int]:
    return list(range(len(bounds) + 1))


def test_every_field_of_the_snapshot_is_published() -> None:
    stats = EngineStats(
        num_waiting=3,
        num_running=4,
        max_running=23,
        waiting_tokens=21,
        admission_interval_s=0.5,
        prefill_s_per_token=0.125,
        decode_step_s=0.375,
        free_pages=50,
        total_pages=60,
        cached_pages=7,
        state_checkpoints=22,
        steps_total=8,
        work_s_total=0.25,
        machine_work_s_total=7.5,
        machine_idle_s_total=8.5,
        prompt_tokens_total=9,
        prefix_hit_tokens_total=10,
        generated_tokens_total=11,
        preemptions_total=12,
        drafts_total=20,
        drafted_tokens_total=[20, 15, 9],
        drafter_tokens_total={"ngram": [24, 13]},
        accepted_tokens_total=[16, 6, 3],
        requests_total={"stop": 13, "length": 14},
        adapters_on_device=5,
        adapter_loads_total=17,
        adapter_requests_total={"german": 18},
        step_time_s=counts(STEP_TIME_BOUNDS_S),
        step_time_sum_s=1.5,
        step_tokens=counts(STEP_TOKENS_BOUNDS),
        step_tokens_sum=2.5,
        ttft_s=counts(TTFT_BOUNDS_S),
        ttft_sum_s=3.5,
        inter_token_s=counts(INTER_TOKEN_BOUNDS_S),
        inter_token_sum_s=4.5,
        forced_tokens_total=19,
        grammar_compile_s=counts(COMPILE_BOUNDS_S),
        grammar_compile_sum_s=5.5,
        grammar_mask_s=counts(MASK_BOUNDS_S),
        grammar_mask_sum_s=6.5,
    )
    metrics = Metrics(["pico"])
    metrics.set_engines({"pico": Source(stats=stats)})
    expected = {
        "up": 1,
        "heartbeat_age_seconds": 0.25,
        "queue_requests": 3,
        "queue_seconds": 21 * 0.125 + 0.375,  # longer than three admissions take
        "running_requests": 4,
        "max_running_requests": 23,
        "waiting_tokens": 21,
        "admission_interval_seconds": 0.5,
        "prefill_seconds_per_token": 0.125,
        "decode_step_seconds": 0.375,
        "free_pages": 50,
        "total_pages": 60,
        "cached_pages": 7,
        "state_checkpoints": 22,
        "steps_total": 8,
        "prompt_tokens_total": 9,
        "prefix_hit_tokens_total": 10,
        "generated_tokens_total": 11,
        "preemptions_total": 12,
        "adapters_on_device": 5,
        "adapter_loads_total": 17,
        "drafts_total": 20,
        "mean_accepted_length": 1 + 25 / 20,
        "step_seconds_sum": 1.5,
        "step_tokens_sum": 2.5,
        "time_to_first_token_seconds_sum": 3.5,
        "inter_token_seconds_sum": 4.5,
        "forced_tokens_total": 19,
        "grammar_compile_seconds_sum": 5.5,
        "grammar_mask_seconds_sum": 6.5,
        "step_seconds_count": len(STEP_TIME_BOUNDS_S),
    }
    for name, value in expected.items():
        assert sample(metrics, f"penstock_engine_{name}", model="pico", replica="0") == value, name
    for position, drafted, accepted in (("1", 20, 16), ("2", 15, 6), ("3+", 9, 3)):
        labels = {"model": "pico", "replica": "0", "position": position}
        assert sample(metrics, "penstock_engine_drafted_tokens_total", **labels) == drafted
        assert sample(metrics, "penstock_engine_accepted_tokens_total", **labels) == accepted
    for name, tokens in (("tokens", 24), ("accepted_tokens", 13)):
        labels = {"model": "pico", "replica": "0", "drafter": "ngram"}
        assert sample(metrics, f"penstock_engine_drafter_{name}_total", **labels) == tokens
    for state, seconds in (("work", 7.5), ("idle", 8.5)):
        labels = {"model": "pico", "replica": "0", "state": state}
        assert sample(metrics, "penstock_engine_machine_seconds_total", **labels) == seconds
    for reason, value in stats.requests_total.items():
        found = sample(
            metrics, "penstock_engine_requests_total", model="pico", replica="0", finish_reason=reason
        )
        assert found == value
    adapted = sample(
        metrics, "penstock_engine_adapter_requests_total", model="pico", replica="0", adapter="german"
    )
    assert adapted == 18
    assert set(EngineStats.__struct_fields__) == {
        name for name in EngineStats.__struct_fields__ if getattr(stats, name)
    }


def test_an_engine_without_a_heartbeat_is_down_and_has_no_statistics() -> None:
    metrics = Metrics(["pico"])
    metrics.set_engines({"pico": Source(ready=False, heartbeat_age_s=math.inf)})
    assert sample(metrics, "penstock_engine_up", model="pico", replica="0") == 0
    assert sample(metrics, "penstock_engine_heartbeat_age_seconds", model="pico", replica="0") == math.inf
    assert sample(metrics, "penstock_engine_queue_requests", model="pico", replica="0") is None


def test_a_dead_engine_keeps_its_counters_and_loses_its_gauges() -> None:
    metrics = Metrics(["pico"])
    metrics.set_engines({"pico": Source(ready=False, stats=EngineStats(num_running=3, steps_total=9))})
    assert sample(metrics, "penstock_engine_running_requests", model="pico", replica="0") is None
    assert sample(metrics, "penstock_engine_queue_seconds", model="pico", replica="0") is None
    assert sample(metrics, "penstock_engine_steps_total", model="pico", replica="0") == 9


def test_an_engine_that_sleeps_is_not_down_and_keeps_its_counters() -> None:
    metrics = Metrics(["m"])
    metrics.set_engines({"m": Source(ready=False, sleeps=True, stats=EngineStats(steps_total=3))})
    assert sample(metrics, "penstock_engine_up", model="m", replica="0") is None
    assert sample(metrics, "penstock_engine_steps_total", model="m", replica="0") == 3


def test_a_snapshot_before_the_first_step_has_no_histograms() -> None:
    metrics = Metrics(["pico"])
    metrics.set_engines({"pico": Source(stats=EngineStats())})
    assert sample(metrics, "penstock_engine_queue_requests", model="pico", replica="0") == 0
    assert sample(metrics, "penstock_engine_step_seconds_count", model="pico", replica="0") is None


def test_an_engine_that_is_refused_names_the_reason() -> None:
    metrics = Metrics(["pico"])
    metrics.set_engines({"pico#tls://h:1": Source(refusal=Refusal("revision", "its revision is another"))})
    labels = {"model": "pico", "replica": "tls://h:1", "reason": "revision"}
    assert sample(metrics, "penstock_engine_refused", **labels) == 1
    metrics.set_engines({"pico#tls://h:1": Source()})
    assert sample(metrics, "penstock_engine_refused", **labels) is None
