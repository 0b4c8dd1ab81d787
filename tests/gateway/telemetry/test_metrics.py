"""Every instrument counts; label values stay a closed set; a request costs microseconds."""

from __future__ import annotations

import time

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.answer import Usage
from gateway.errors import ApiError
from gateway.telemetry import instruments
from gateway.telemetry.metrics import Meter, Metrics
from gateway.telemetry.shared_counters import new_counter_file

CHAT = {"endpoint": "chat", "model": "pico"}


def scrape(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families: list[Metric] = list(text_string_to_metric_families(metrics.render().decode()))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return scrape(metrics).get((name, frozenset(labels.items())))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["pico", "big"])


def serve(metrics: Metrics, *, endpoint: str = "chat", model: str = "pico", status: int = 200) -> Meter:
    meter = metrics.begin(endpoint)
    now_s = time.perf_counter()
    meter.call_started(model, now_s)
    meter.chunk(now_s + 0.05)
    meter.chunk(now_s + 0.06)
    meter.call_ended(now_s + 0.07, Usage(10, completion_tokens=2, cached_tokens=8, reasoning_tokens=1), "")
    meter.end(now_s + 0.0705, status)
    return meter


def test_one_request_moves_every_instrument(metrics: Metrics) -> None:
    serve(metrics)
    assert sample(metrics, "penstock_requests_total", **CHAT, status="2xx") == 1
    assert sample(metrics, "penstock_tokens_total", **CHAT, kind="input") == 10
    assert sample(metrics, "penstock_tokens_total", **CHAT, kind="output") == 2
    assert sample(metrics, "penstock_tokens_total", **CHAT, kind="cached") == 8
    assert sample(metrics, "penstock_tokens_total", **CHAT, kind="reasoning") == 1
    for name in ("request_duration", "time_to_first_token", "inter_token", "gateway_overhead"):
        assert sample(metrics, f"penstock_{name}_seconds_count", **CHAT) == 1, name
    assert sample(metrics, "penstock_request_duration_seconds_sum", **CHAT) == pytest.approx(0.0705, abs=2e-3)
    assert sample(metrics, "penstock_inter_token_seconds_sum", **CHAT) == pytest.approx(0.01)
    assert sample(metrics, "penstock_gateway_overhead_seconds_sum", **CHAT) == pytest.approx(0.0005, abs=2e-4)


def test_targets_of_an_upstream_have_times_of_their_own() -> None:
    place = "http://one/v1 with KEY at home"
    metrics = Metrics(["far", f"far at {place}", "far at http://two/v1"])
    for took_s in (0.05, 0.15, 9999.0):
        metrics.target_began(f"far at {place}", took_s)
    metrics.target_began("far at http://unknown/v1", 1.0)
    serve(metrics, model="far")
    name, labels = "penstock_upstream_first_content_seconds", {"model": "far", "target": place}
    assert sample(metrics, f"{name}_count", **labels) == 3
    assert sample(metrics, f"{name}_sum", **labels) == pytest.approx(9999.2)
    assert sample(metrics, f"{name}_bucket", **labels, le="0.15") == 2
    shown = [(each, dict(found)) for each, found in scrape(metrics)]
    assert all(found["target"] == place for each, found in shown if each.startswith(name))
    assert not [found for each, found in shown if " at " in found.get("model", "")]
    assert sample(metrics, "penstock_time_to_first_token_seconds_count", endpoint="chat", model="far") == 1


def test_estimated_tokens_are_counted_apart(metrics: Metrics) -> None:
    serve(metrics)
    assert sample(metrics, "penstock_tokens_total", **CHAT, kind="estimated") is None
    meter = metrics.begin("chat")
    meter.call_started("pico", time.perf_counter())
    meter.call_ended(time.perf_counter(), Usage(5, completion_tokens=4, is_estimated=True), "")
    assert sample(metrics, "penstock_tokens_total", **CHAT, kind="estimated") == 9
    assert sample(metrics, "penstock_tokens_total", **CHAT, kind="input") == 15


def test_buckets_are_cumulative_and_inclusive(metrics: Metrics) -> None:
    meter = metrics.begin("chat")
    meter.call_started("pico", 100.0)
    for now_s in (100.0, 100.001, 100.002, 100.012, 160.0):
        meter.chunk(now_s)
    labels = {**CHAT, "le": "0.001"}
    assert sample(metrics, "penstock_inter_token_seconds_bucket", **labels) in (1, 2)  # 0.001 is a bound
    assert sample(metrics, "penstock_inter_token_seconds_bucket", **{**CHAT, "le": "0.015"}) == 3
    assert sample(metrics, "penstock_inter_token_seconds_bucket", **{**CHAT, "le": "+Inf"}) == 4


def test_in_flight_goes_up_and_down(metrics: Metrics) -> None:
    meter = metrics.begin("embeddings")
    assert sample(metrics, "penstock_requests_in_flight", endpoint="embeddings") == 1
    meter.end(time.perf_counter(), 200)
    assert sample(metrics, "penstock_requests_in_flight", endpoint="embeddings") == 0


@pytest.mark.parametrize(
    ("status", "label"),
    [(200, "2xx"), (400, "4xx"), (429, "4xx"), (499, "client_closed"), (500, "5xx"), (503, "5xx")],
)
def test_status_classes(metrics: Metrics, status: int, label: str) -> None:
    serve(metrics, status=status)
    assert sample(metrics, "penstock_requests_total", **CHAT, status=label) == 1


def test_an_answer_that_breaks_off_is_no_success(metrics: Metrics) -> None:
    metrics.begin("chat").end(time.perf_counter(), 200, is_broken=True)
    assert sample(metrics, "penstock_requests_total", endpoint="chat", model="-", status="broken") == 1
    assert sample(metrics, "penstock_requests_total", endpoint="chat", model="-", status="2xx") is None


def test_unknown_names_do_not_become_labels(metrics: Metrics) -> None:
    meter = serve(metrics, model="canary-model", status=404)
    meter.call_started("pico", time.perf_counter())
    meter.call_ended(time.perf_counter(), None, "canary error")
    page = metrics.render().decode()
    assert "canary" not in page
    assert sample(metrics, "penstock_requests_total", endpoint="chat", model="-", status="4xx") == 1
    assert sample(metrics, "penstock_model_call_errors_total", **CHAT, error="other") == 1


def test_every_error_class_of_the_gateway_is_a_known_label() -> None:
    assert {kind.__name__ for kind in ApiError.__subclasses__()} - {"MethodNotAllowed", "BodyTooLarge"} == {
        *instruments.CALL_ERRORS
    } - {"other"}


def test_a_second_end_of_the_call_counts_nothing(metrics: Metrics) -> None:
    meter = metrics.begin("chat")
    meter.call_started("pico", time.perf_counter())
    for _ in range(2):
        meter.call_ended(time.perf_counter(), Usage(prompt_tokens=1), "TimedOut")
    assert sample(metrics, "penstock_model_call_errors_total", **CHAT, error="TimedOut") == 1
    assert sample(metrics, "penstock_tokens_total", **CHAT, kind="input") == 1


def test_workers_add_up() -> None:
    fds = [new_counter_file(), new_counter_file()]
    first, second = Metrics(["pico"], fds, worker=0), Metrics(["pico"], fds, worker=1)
    serve(first)
    serve(second)
    assert sample(first, "penstock_requests_total", **CHAT, status="2xx") == 2
    assert sample(second, "penstock_requests_total", **CHAT, status="2xx") == 2


def test_unused_series_are_left_out(metrics: Metrics) -> None:
    assert 'endpoint="chat",model' not in metrics.render().decode()


def test_a_single_worker_shows_memory_and_processor_time(metrics: Metrics) -> None:
    assert "process_resident_memory_bytes" in metrics.render().decode()
    assert "process_resident_memory_bytes" not in Metrics(["pico"], [new_counter_file()]).render().decode()


def test_a_request_costs_microseconds(metrics: Metrics) -> None:
    best_s = min(_cpu_time_of_requests(metrics, 300) for _ in range(5))
    assert best_s < 60e-6, f"{best_s * 1e6:.1f} µs a request"  # 6 µs on an idle machine


def _cpu_time_of_requests(metrics: Metrics, count: int) -> float:
    usage = Usage(prompt_tokens=10, completion_tokens=2)
    started_s = time.thread_time()
    for _ in range(count):
        meter = metrics.begin("chat")
        meter.call_started("pico", time.perf_counter())
        meter.chunk(time.perf_counter())
        meter.call_ended(time.perf_counter(), usage, "")
        meter.end(time.perf_counter(), 200)
    return (time.thread_time() - started_s) / count


def test_faults_beside_the_requests_are_shared_and_shown_from_the_start() -> None:
    fds = [new_counter_file() for _ in range(2)]
    workers = [Metrics(["m"], fds, number) for number in range(2)]
    for worker in workers:
        worker.fault("redis_cache", "entry_skipped")
    page = workers[0].render().decode()
    assert 'penstock_faults_total{fault="entry_skipped",part="redis_cache"} 2.0' in page
    assert 'penstock_faults_total{fault="restarted",part="counts"} 0.0' in page
