"""What the cache costs and saves per request, through HTTP at one connection, with an instant upstream."""

from __future__ import annotations

import argparse
import http.client
import json
import time
from collections.abc import Iterator

from tests.bench import load, report
from tests.bench.gateway import MODEL, instant_upstream, on_core
from tests.bench.targets import Target, free_port, ours, running

WARM_UP_REQUESTS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench cache`."""
    parser.add_argument("--requests", type=int, default=3000, help="per case and round")
    parser.add_argument("--rounds", type=int, default=3)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print: the gateway runs on core 0, upstream and client on core 1."""
    port = free_port()
    models: dict[str, object] = {MODEL: {"upstream": {"base_url": f"http://127.0.0.1:{port}/v1"}}}
    cases = {
        "no cache": (_target(models, "none"), _repeated),
        "miss": (_target(models, "exact"), _distinct),
        "exact hit": (_target(models, "exact"), _repeated),
    }
    best: dict[str, list[float]] = {}
    with instant_upstream(port):
        for _ in range(arguments.rounds):
            for name, (target, questions) in cases.items():
                with running(target):
                    taken_s = times_s(target, questions(), arguments.requests)
                if name not in best or load.percentile(taken_s, 0.5) < load.percentile(best[name], 0.5):
                    best[name] = taken_s
    rows = [row(name, taken_s, best["no cache"]) for name, taken_s in best.items()]
    title = f"cache · one core, one connection · best of {arguments.rounds} rounds"
    report.show(title, rows, arguments.json)


def _target(models: dict[str, object], mode: str) -> Target:
    sections: dict[str, object] = {"cache": {"mode": mode}}
    return ours(mode, models, MODEL, prefix=on_core(0), sections=sections)


def _repeated() -> Iterator[str]:
    while True:
        yield "Hello! What can you do for me today?"


def _distinct() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"Hello! What can you do for me today, on day {number}?"


def times_s(target: Target, questions: Iterator[str], count: int) -> list[float]:
    """The time of each of `count` requests, one after the other."""
    connection = http.client.HTTPConnection(*target.url.split("/")[2].split(":"))
    headers = {"content-type": "application/json", "authorization": f"Bearer {target.key}"}
    found: list[float] = []
    for number, question in zip(range(WARM_UP_REQUESTS + count), questions, strict=False):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
        body = json.dumps({"model": target.model, "messages": messages, "temperature": 0.2})
        started_s = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        content = response.read()
        if number >= WARM_UP_REQUESTS:
            found.append(time.perf_counter() - started_s)
        assert response.status == 200, content[:300]
    return found


def row(name: str, taken_s: list[float], plain_s: list[float]) -> report.Row:
    p50_s = load.percentile(taken_s, 0.5)
    return {
        **{"case": name, "p50 ms": p50_s * 1e3, "p99 ms": load.percentile(taken_s, 0.99) * 1e3},
        **{"p50 to no cache ms": (p50_s - load.percentile(plain_s, 0.5)) * 1e3},
    }
