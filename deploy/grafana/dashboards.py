"""Writes the dashboards beside it: `python deploy/grafana/dashboards.py`. A row of a table is a panel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
WIDTH, HEIGHT, PER_ROW = 8, 8, 3
"""Size of a panel in the units of Grafana's grid, which is 24 wide."""
WINDOW = "$__rate_interval"

Query = tuple[str, str]
"""An expression and its legend."""
Panel = tuple[str, str, list[Query]]
"""Title, unit as Grafana names it, queries."""


def rate(metric: str, by: str, where: str = "") -> Query:
    """Events per second by labels."""
    labels = by.replace(" ", "").split(",")
    return f"sum by ({by}) (rate({metric}{where}[{WINDOW}]))", " ".join(f"{{{{{each}}}}}" for each in labels)


def share(part: str, whole: str, by: str) -> Query:
    """One rate as a share of another."""
    return f"{rate(part, by)[0]} / {rate(whole, by)[0]}", rate(part, by)[1]


def per_hour(metric: str, by: str) -> Query:
    """A sum as it would be after an hour."""
    expression, legend = rate(metric, by)
    return f"3600 * {expression}", legend


def percentiles(metric: str, by: str, where: str = "") -> list[Query]:
    """The median and the 99th percentile of a histogram."""
    inside = f"sum by (le, {by}) (rate({metric}_bucket{where}[{WINDOW}]))"
    legend = rate(metric, by)[1]
    return [(f"histogram_quantile({q}, {inside})", f"{legend} p{q * 100:.0f}") for q in (0.5, 0.99)]


TRAFFIC: list[Panel] = [
    ("Requests", "reqps", [rate("penstock_requests_total", "model, status")]),
    ("In flight", "short", [("sum by (endpoint) (penstock_requests_in_flight)", "{{endpoint}}")]),
    ("Duration", "s", percentiles("penstock_request_duration_seconds", "model")),
    ("Time to first token", "s", percentiles("penstock_time_to_first_token_seconds", "model")),
    ("Inter-token latency", "s", percentiles("penstock_inter_token_seconds", "model")),
    ("Gateway overhead", "s", percentiles("penstock_gateway_overhead_seconds", "endpoint")),
    ("Failed model calls", "ops", [rate("penstock_model_call_errors_total", "model, error")]),
    ("Upstream failures", "ops", [rate("penstock_upstream_failures_total", "model, kind")]),
    ("Upstream retries", "ops", [rate("penstock_upstream_retries_total", "model, cause")]),
    ("Upstreams left out", "ops", [rate("penstock_upstream_ejections_total", "model, trouble")]),
    ("Faults beside requests", "ops", [rate("penstock_faults_total", "part, fault")]),
]

COST: list[Panel] = [
    ("USD per hour by tenant", "currencyUSD", [per_hour("penstock_tenant_cost_usd_total", "tenant")]),
    ("USD per hour by route", "currencyUSD", [per_hour("penstock_route_cost_usd_total", "route")]),
    ("Output tokens by route", "short", [rate("penstock_route_tokens_total", "route", '{kind="output"}')]),
    (
        "Share of the prompt's tokens that a cache had",
        "percentunit",
        [
            share(
                'penstock_route_tokens_total{kind="cached"}',
                'penstock_route_tokens_total{kind="input"}',
                "route",
            )
        ],
    ),
    (
        "Share of tokens that were estimated",
        "percentunit",
        [
            share(
                'penstock_tenant_tokens_total{kind="estimated"}',
                'penstock_tenant_tokens_total{kind=~"input|output"}',
                "tenant",
            )
        ],
    ),
    (
        "Machine seconds per second",
        "short",
        [rate("penstock_engine_machine_seconds_total", "model, state")],
    ),
]

TENANTS: list[Panel] = [
    ("Requests", "reqps", [rate("penstock_tenant_requests_total", "tenant, status")]),
    ("Tokens", "short", [rate("penstock_tenant_tokens_total", "tenant, kind", '{kind=~"input|output"}')]),
    ("Refused by a limit", "ops", [rate("penstock_tenant_refusals_total", "tenant, limit")]),
    ("Answered by another model", "ops", [rate("penstock_tenant_fallbacks_total", "tenant")]),
    (
        "Share that failed",
        "percentunit",
        [
            share(
                'penstock_tenant_requests_total{status=~"5xx|broken"}',
                "penstock_tenant_requests_total",
                "tenant",
            )
        ],
    ),
    ("Limits that are not shared", "ops", [rate("penstock_faults_total", "fault", '{part="limits"}')]),
]

CACHE: list[Panel] = [
    ("Requests by where the answer came from", "reqps", [rate("penstock_cache_requests_total", "outcome")]),
    (
        "Share answered by the cache",
        "percentunit",
        [
            share(
                'penstock_cache_requests_total{outcome=~"exact|semantic|shared"}',
                "penstock_cache_requests_total",
                "model",
            )
        ],
    ),
    (
        "False hits among those judged, with the 95 % interval",
        "percentunit",
        [("penstock_cache_false_hit_rate", "{{model}} {{value}}")],
    ),
    ("Not compared or stopped, by guard", "ops", [rate("penstock_cache_guards_total", "guard")]),
    ("Verdicts on hits", "ops", [rate("penstock_cache_verdicts_total", "model, verdict")]),
    ("Faults of Redis", "ops", [rate("penstock_faults_total", "fault", '{part="redis_cache"}')]),
]

ROUTER: list[Panel] = [
    ("Requests by model", "reqps", [rate("penstock_requests_total", "model")]),
    ("Output tokens by model", "short", [rate("penstock_tokens_total", "model", '{kind="output"}')]),
    ("Duration by model", "s", percentiles("penstock_request_duration_seconds", "model")),
    ("Shadow requests", "reqps", [rate("penstock_requests_total", "model", '{endpoint="shadow"}')]),
    ("Signals that could not be read", "ops", [rate("penstock_signals_unavailable_total", "signal")]),
]

GUARDRAILS: list[Panel] = [
    ("Verdicts by check", "ops", [rate("penstock_guardrail_verdicts_total", "check, outcome")]),
    (
        "Blocked",
        "ops",
        [rate("penstock_guardrail_verdicts_total", "model, check", '{outcome="blocked"}')],
    ),
    (
        "Checks that could not be made",
        "ops",
        [rate("penstock_guardrail_verdicts_total", "check, outcome", '{outcome=~"failed_.*"}')],
    ),
    (
        "Texts in languages that a check does not read",
        "ops",
        [rate("penstock_guardrail_verdicts_total", "check, language", '{outcome="unreadable"}')],
    ),
]

ENGINE: list[Panel] = [
    ("Up", "short", [("penstock_engine_up", "{{model}} {{replica}}")]),
    (
        "Waiting and running",
        "short",
        [
            ("penstock_engine_queue_requests", "{{model}} {{replica}} waiting"),
            ("penstock_engine_running_requests", "{{model}} {{replica}} running"),
        ],
    ),
    ("Predicted wait of a new request", "s", [("penstock_engine_queue_seconds", "{{model}} {{replica}}")]),
    (
        "KV pages",
        "short",
        [
            ("penstock_engine_free_pages", "{{model}} {{replica}} free"),
            ("penstock_engine_cached_pages", "{{model}} {{replica}} cached"),
            ("penstock_engine_total_pages", "{{model}} {{replica}} all"),
        ],
    ),
    ("Step time", "s", percentiles("penstock_engine_step_seconds", "model")),
    ("Tokens of a step", "short", percentiles("penstock_engine_step_tokens", "model")),
    ("Time to first token", "s", percentiles("penstock_engine_time_to_first_token_seconds", "model")),
    (
        "Tokens",
        "short",
        [
            rate("penstock_engine_prompt_tokens_total", "model"),
            rate("penstock_engine_generated_tokens_total", "model"),
        ],
    ),
    (
        "Prompt tokens found in the prefix tree",
        "percentunit",
        [
            (
                f"rate(penstock_engine_prefix_hit_tokens_total[{WINDOW}]) / "
                f"(rate(penstock_engine_prefix_hit_tokens_total[{WINDOW}])"
                f" + rate(penstock_engine_prompt_tokens_total[{WINDOW}]))",
                "{{model}}",
            )
        ],
    ),
    (
        "Drafts accepted",
        "percentunit",
        [share("penstock_engine_accepted_tokens_total", "penstock_engine_drafted_tokens_total", "model")],
    ),
    ("Preemptions", "ops", [rate("penstock_engine_preemptions_total", "model")]),
    ("Adapters on the device", "short", [("penstock_engine_adapters_on_device", "{{model}} {{replica}}")]),
    ("Grammar masks of a step", "s", percentiles("penstock_engine_grammar_mask_seconds", "model")),
]

DASHBOARDS: dict[str, list[Panel]] = {
    "traffic": TRAFFIC,
    "cost": COST,
    "tenants": TENANTS,
    "cache": CACHE,
    "router": ROUTER,
    "guardrails": GUARDRAILS,
    "engine": ENGINE,
}


def dashboard(name: str) -> dict[str, Any]:
    """One of DASHBOARDS in Grafana's schema."""
    return {
        "uid": f"penstock-{name}",
        "title": f"Penstock: {name}",
        "tags": ["penstock"],
        "links": [{"type": "dashboards", "tags": ["penstock"], "title": "Penstock", "asDropdown": True}],
        "schemaVersion": 41,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": [_panel(number, *each) for number, each in enumerate(DASHBOARDS[name])],
    }


def text(name: str) -> str:
    """The dashboard's file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


def _panel(number: int, title: str, unit: str, queries: list[Query]) -> dict[str, Any]:
    row, column = divmod(number, PER_ROW)
    return {
        "id": 1 + number,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": row * HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(queries)
        ],
    }


if __name__ == "__main__":
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name), "utf-8")
