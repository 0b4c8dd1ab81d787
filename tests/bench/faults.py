"""What clients get while an upstream fails: alone, as one of two targets, and with a fallback.

A peer must have the models that `--models FILE` writes: each has one or two `targets`, and perhaps the
`fallback` to the model `sound`. Give it the limits that ours gets: 1 s without output, two retries.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.bench import report
from tests.bench.targets import Target, ours, parse_peer, running
from tests.e2e.upstream import Upstream

FAULTS = ("500", "503", "429", "401", "hang", "refuse", "cut", "stall", "role")
PLACES = ("alone", "two", "fallback")
WAYS = ("streamed", "whole")
REFUSING = "http://127.0.0.1:9/v1"
LIMITS = {"first_token_timeout_s": 1.0, "idle_timeout_s": 1.0}
MAX_AT_ONCE = 4
CLIENT_LIMIT_S = 20.0


@dataclass(frozen=True)
class Case:
    """One fault at one place, for one kind of request."""

    place: str
    fault: str
    way: str

    @property
    def model(self) -> str:
        """A model of its own, so that no case spends another's retries."""
        return f"{self.place}-{self.fault}-{self.way}"


CASES = [Case(*each) for each in itertools.product(PLACES, FAULTS, WAYS)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench faults`."""
    parser.add_argument("--requests", type=int, default=3, help="for each case, one after the other")
    parser.add_argument("--ports", default="0,0", help="fixed ones of the failing and the sound upstream")
    parser.add_argument("--models", metavar="FILE", help="write the peer's models there, and end")
    parser.add_argument(
        *("--peer", "--peers"), action="append", default=[], metavar="NAME=URL COMMAND", help="repeatable"
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    Upstream.port, sound_port = map(int, arguments.ports.split(","))
    faulty = Upstream()
    Upstream.port = sound_port
    sound = Upstream(is_sound=True)
    try:
        models = _models(faulty.base_url, sound.base_url)
        if arguments.models:
            Path(arguments.models).write_text(json.dumps(models, indent=1))
            return
        rows: dict[Case, report.Row] = {case: vars(case).copy() for case in CASES}
        peers = [parse_peer(text) for text in arguments.peer]
        for target in [_ours(models), *(_with_key(peer) for peer in peers)]:
            faulty.seen.clear()
            with running(target), ThreadPoolExecutor(MAX_AT_ONCE) as pool:
                found = list(pool.map(partial(_ask, target, arguments.requests), CASES))
            for case, (outcome, took_s) in zip(CASES, found, strict=True):
                rows[case] |= {
                    target.name: outcome,
                    f"{target.name} s": took_s,
                    f"{target.name} calls": faulty.num_seen(case.model),
                }
    finally:
        faulty.close()
        sound.close()
    title = f"faults · {arguments.requests} requests each · slowest of them · calls of the failing upstream"
    report.show(title, list(rows.values()), arguments.json)


def _models(faulty_url: str, sound_url: str) -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = {"sound": {"targets": [sound_url]}}
    for case in CASES:
        failing = REFUSING if case.fault == "refuse" else faulty_url
        models[case.model] = {"targets": [failing, sound_url] if case.place == "two" else [failing]}
        if case.place == "fallback":
            models[case.model]["fallback"] = "sound"
    return models


def _ours(models: dict[str, dict[str, Any]]) -> Target:
    entries: dict[str, object] = {}
    routes: dict[str, object] = {}
    for name, model in models.items():
        targets = [{"base_url": url} for url in model["targets"]]
        entries[name] = {"upstream": {"model": name, "targets": targets, **LIMITS}}
        if "fallback" in model:
            routes[f"r-{name}"] = {"model": name, "fallback": {"any": [model["fallback"]]}}
    return ours("ours", entries, "", sections={"routes": routes})


def _with_key(peer: Target) -> Target:
    return Target(peer.name, peer.url, peer.model, peer.command, "sk-1234")


def _ask(target: Target, num_requests: int, case: Case) -> tuple[str, float]:
    """What the requests got, and the seconds of the slowest."""
    routed = "r-" if target.name == "ours" and case.place == "fallback" else ""
    body = {
        "model": routed + case.model,
        "messages": [{"role": "user", "content": f"fault {case.fault} 99"}],
        "stream": case.way == "streamed",
    }
    outcomes: Counter[str] = Counter()
    slowest_s = 0.0
    for _ in range(num_requests):
        began_s = time.perf_counter()
        outcomes[_outcome(target, body)] += 1
        slowest_s = max(slowest_s, time.perf_counter() - began_s)
    return ", ".join(f"{count} {name}" for name, count in outcomes.most_common()), round(slowest_s, 1)


def _outcome(target: Target, body: dict[str, Any]) -> str:
    headers = {"authorization": f"Bearer {target.key}"}
    lines: list[str] = []
    try:
        with httpx.stream(
            "POST", f"{target.url}/chat/completions", json=body, headers=headers, timeout=CLIENT_LIMIT_S
        ) as response:
            for line in response.iter_lines():
                lines.append(line)
    except httpx.TimeoutException:
        return "hangs"
    except httpx.HTTPError:
        return "closed" if lines else "no answer"
    if response.status_code != 200:
        return str(response.status_code)
    return streamed_outcome(lines) if body["stream"] else whole_outcome("\n".join(lines))


def streamed_outcome(lines: Iterable[str]) -> str:
    """What a client of a stream sees that has ended without a broken connection."""
    events = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    text, has_end = "", False
    for event in events:
        if event == "[DONE]":
            continue
        piece = json.loads(event)
        if piece.get("error"):
            return "error event"
        for choice in piece.get("choices") or ():
            text += choice.get("delta", {}).get("content") or ""
            has_end |= bool(choice.get("finish_reason"))
    if not has_end:
        return "SILENT CUT"
    return "whole" if text.startswith("echo") and "part" not in text else "WRONG TEXT"


def whole_outcome(body: str) -> str:
    """What a client of an answer with the status 200 sees."""
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
        return "whole" if text.startswith("echo") else "WRONG TEXT"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "BROKEN 200"
