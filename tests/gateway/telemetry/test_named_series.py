"""Series of tenants and routes: the same numbers in all workers, a bound on names, sums that hold."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from gateway.telemetry.metrics import Metrics
from gateway.telemetry.named_series import AMOUNTS, MAX_NAMES, SharedNames
from gateway.telemetry.shared_counters import new_counter_file
from tests.gateway.telemetry.test_metrics import sample, scrape

ONE = (1,) * AMOUNTS


def count(metrics: Metrics, tenant: str = "team", route: str = "auto", status: int = 0) -> None:
    """Count a request with one of everything."""
    metrics.series.count(tenant, route, status, ONE)


def test_each_amount_has_a_series() -> None:
    metrics = Metrics(["m"])
    metrics.series.count("team", "auto", 0, (5, 3, 2, 1, 8, 2, 0.25, 1.5))
    for kind, name in (("tenant", "team"), ("route", "auto")):
        found = partial(sample, metrics, **{kind: name})
        assert found(f"penstock_{kind}_requests_total", status="2xx") == 1
        tokens = [found(f"penstock_{kind}_tokens_total", kind=each) for each in ("input", "output", "cached")]
        assert tokens == [5, 3, 2]
        assert found(f"penstock_{kind}_fallbacks_total") == 2
        assert found(f"penstock_{kind}_cost_usd_total") == 0.25
        assert found(f"penstock_{kind}_machine_seconds_total") == 1.5


def test_requests_that_name_a_model_have_no_route() -> None:
    metrics = Metrics(["m"])
    count(metrics, route="", status=1)
    assert sample(metrics, "penstock_route_requests_total", route="-", status="4xx") == 1


def test_tenants_beyond_the_most_are_counted_together() -> None:
    metrics = Metrics(["m"])
    metrics.series.add_tenants(["last"])
    for number in range(MAX_NAMES + 50):
        count(metrics, f"t{number}")
    count(metrics, "last")
    found = {
        dict(labels).get("tenant") for name, labels in scrape(metrics) if name.startswith("penstock_tenant")
    }
    assert len(found) == MAX_NAMES + 1
    assert sample(metrics, "penstock_tenant_requests_total", tenant="other", status="2xx") == 51
    assert sample(metrics, "penstock_tenant_requests_total", tenant="last", status="2xx") == 1


def test_workers_agree_on_names() -> None:
    fds, names = [new_counter_file(), new_counter_file()], new_counter_file()
    first = Metrics(["m"], fds, 0, names_fd=names)
    second = Metrics(["m"], fds, 1, names_fd=names)
    count(first, "a")
    count(second, "b")
    count(second, "a")
    count(first, "b", "other route")
    for metrics in (first, second):
        for tenant in ("a", "b"):
            assert sample(metrics, "penstock_tenant_requests_total", tenant=tenant, status="2xx") == 2
        assert sample(metrics, "penstock_route_cost_usd_total", route="other route") == 1
    # A worker that starts late, after policies with more models.
    again = Metrics(["m", "n", "o"], fds, 1, names_fd=names)
    count(again, "b")
    assert sample(first, "penstock_tenant_requests_total", tenant="b", status="2xx") == 3


def _numbers(fd: int, names: list[str]) -> list[int]:
    shared = SharedNames(fd)
    return [shared.number("tenant", name) for name in names]


def test_processes_that_meet_names_at_the_same_time_number_them_alike() -> None:
    fd = new_counter_file()
    names = [f"tenant-{number}" for number in range(MAX_NAMES + 20)]
    orders = [names, names[::-1], names[100:] + names[:100], names]
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as pool:
        jobs = [pool.submit(_numbers, fd, order) for order in orders]
        found = [
            dict(zip(order, job.result(60), strict=True)) for order, job in zip(orders, jobs, strict=True)
        ]
    assert found[0] == found[1] == found[2] == found[3]
    given = [number for number in found[0].values() if number < MAX_NAMES]
    assert sorted(given) == list(range(MAX_NAMES))


@pytest.mark.parametrize("fails", ["pwrite", "pread"])
def test_a_name_that_cannot_be_shared_is_other(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def no_space(*arguments: object) -> int:
        raise OSError("no space")

    shared: Callable[[str], int] = partial(SharedNames(new_counter_file()).number, "tenant")
    assert shared("a") == 0
    with monkeypatch.context() as broken:
        broken.setattr(f"os.{fails}", no_space)
        assert (shared("a"), shared("b")) == (0, MAX_NAMES)
    assert shared("b") == 1


def test_refusals_have_the_name_of_the_limit() -> None:
    metrics = Metrics(["m"])
    count(metrics)
    for limit in ("usd_per_day", "concurrent_requests", "usd_per_day"):
        metrics.series.refused("team", limit)
    found = partial(sample, metrics, "penstock_tenant_refusals_total", tenant="team")
    assert (found(limit="usd_per_day"), found(limit="concurrent_requests")) == (2, 1)
    assert sample(metrics, "penstock_tenant_cost_usd_total", tenant="team") == 1
    assert sample(metrics, "penstock_route_cost_usd_total", route="auto") == 1


def test_limits_are_those_of_the_policies_in_force() -> None:
    metrics = Metrics(["m"])
    metrics.series.add_tenants(["team"])
    metrics.series.limits = {"team": {"usd_per_day": 2.5}, "tenant 201": {"usd_per_day": 1}}
    assert sample(metrics, "penstock_tenant_limit", tenant="team", limit="usd_per_day") == 2.5
    assert "tenant 201" not in metrics.render().decode()
    metrics.series.limits = {}
    assert sample(metrics, "penstock_tenant_limit", tenant="team", limit="usd_per_day") is None
