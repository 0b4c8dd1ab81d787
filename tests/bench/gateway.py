"""Gateway against gateway: requests/s on one core and latency, proxying to an instant upstream.

Core 0 runs the gateway, core 1 the upstream and the load; gateways are interleaved, the best round counts.
nginx and wrk are used when installed, else slower substitutes in Python, with which only ratios are valid.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.bench import report
from tests.bench.targets import Target, cpu_time_s, free_port, ours, parse_peer, running

MODEL = "gpt-4o-mini"
WARM_UP_S = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench gateway`."""
    parser.add_argument("--connections", default="1,16,64")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--upstream-port", type=int, default=0, help="fixed port, for peers that are configured with it"
    )
    parser.add_argument(
        *("--peer", "--peers"),
        action="append",
        default=[],
        metavar="NAME=URL[#MODEL] COMMAND",
        help=f"another gateway that proxies {MODEL} to the upstream; repeatable",
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    port = arguments.upstream_port or free_port()
    upstream_url = f"http://127.0.0.1:{port}/v1"
    models: dict[str, object] = {MODEL: {"upstream": {"base_url": upstream_url}}}
    on_core_0 = on_core(0)
    targets = [ours("ours", models, MODEL, prefix=on_core_0)]
    for text in arguments.peer:
        peer = parse_peer(text)
        targets.append(Target(peer.name, peer.url, MODEL, (*on_core_0, *peer.command), "sk-1234"))
    targets.append(Target("upstream itself", upstream_url, MODEL))
    best: dict[tuple[str, int], report.Row] = {}
    with instant_upstream(port):
        for target in targets * arguments.rounds:
            _measure(target, arguments, best)
    rows: list[report.Row] = []
    for (name, connections), found in sorted(best.items(), key=lambda item: (item[0][1], item[0][0])):
        ratio = best["ours", connections]["req/s"] / found["req/s"]
        rows.append({"gateway": name, "connections": connections, **found, "ours/this": ratio})
    tools = (
        "nginx" if shutil.which("nginx") else "python upstream",
        "wrk" if shutil.which("wrk") else "python load",
    )
    title = f"gateway · one core · {' and '.join(tools)} · best of {arguments.rounds} × {arguments.seconds} s"
    report.show(title, rows, arguments.json)


def _measure(target: Target, arguments: argparse.Namespace, best: dict[tuple[str, int], report.Row]) -> None:
    """Measure one gateway at each number of connections; keep the best results."""
    with running(target) as pid:
        _load(target, 16, WARM_UP_S)
        for connections in map(int, arguments.connections.split(",")):
            before_s = cpu_time_s(pid) if pid else 0.0
            found = _load(target, connections, arguments.seconds)
            if pid:  # unlike the rate, independent of other load on the machine
                used_s = cpu_time_s(pid) - before_s
                found["cpu µs/req"] = used_s / (found["req/s"] * arguments.seconds) * 1e6
            key = (target.name, connections)
            if key not in best or found["req/s"] > best[key]["req/s"]:
                best[key] = found


def on_core(core: int) -> tuple[str, ...]:
    """The command prefix that pins a process to one core; empty on a single core."""
    return (
        ("taskset", "-c", str(core)) if len(os.sched_getaffinity(0)) > 1 and shutil.which("taskset") else ()
    )


@contextlib.contextmanager
def instant_upstream(port: int) -> Iterator[None]:
    """An OpenAI-compatible server that answers at once with a fixed chat completion."""
    if shutil.which("nginx"):
        folder = tempfile.mkdtemp(prefix="penstock-bench-nginx-")
        config = Path(folder, "nginx.conf")
        config.write_text(
            f"worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
            "events { worker_connections 4096; }\n"
            "http { access_log off; keepalive_requests 100000000; client_max_body_size 50m;\n"
            f" server {{ listen 127.0.0.1:{port}; location /v1/chat/completions {{\n"
            f"  default_type application/json; return 200 '{_answer()}'; }} }} }}\n"
        )
        command = ["nginx", "-c", str(config)]
    else:
        command = [sys.executable, "-m", "tests.bench.instant_upstream", str(port)]
    with subprocess.Popen([*on_core(1), *command], stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(1.0)  # it has no readiness probe
            yield
        finally:
            process.terminate()


def _answer() -> str:
    message = {
        "role": "assistant",
        "content": "The same sentence for everybody, so that only the gateway costs time.",
    }
    return json.dumps(
        {
            **{"id": "chatcmpl-123", "object": "chat.completion", "created": 1700000000, "model": MODEL},
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 19, "completion_tokens": 15, "total_tokens": 34},
        }
    )


def _load(target: Target, connections: int, seconds: int) -> report.Row:
    system = {"role": "system", "content": "You are a helpful assistant."}
    user = {"role": "user", "content": "Hello! What can you do for me today?"}
    body = {"model": MODEL, "messages": [system, user], "max_tokens": 64, "temperature": 0.2}
    url = target.url + "/chat/completions"
    headers = {"content-type": "application/json", "authorization": f"Bearer {target.key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        assert json.loads(response.read())["choices"], f"{target.name} does not answer"
    if shutil.which("wrk"):
        return _wrk(url, headers, json.dumps(body), connections, seconds)
    command = [sys.executable, "-m", "tests.bench.http_load", url, str(connections), str(seconds)]
    out = subprocess.run(
        [*on_core(1), *command, json.dumps(headers), json.dumps(body)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: report.Row = json.loads(out)
    return found


def _wrk(url: str, headers: dict[str, str], body: str, connections: int, seconds: int) -> report.Row:
    lines = [
        'wrk.method="POST"',
        *(f'wrk.headers["{k}"]="{v}"' for k, v in headers.items()),
        f"wrk.body=[==[{body}]==]",
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write("\n".join(lines))
        script.flush()
        command = ["wrk", "--latency", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script.name, url]
        out = subprocess.run([*on_core(1), *command], capture_output=True, text=True, check=True).stdout
    errors = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    return {
        "req/s": float(_find(r"Requests/sec:\s+([\d.]+)", out)),
        "p50 ms": _milliseconds(_find(r"50%\s+(\S+)", out)),
        "p99 ms": _milliseconds(_find(r"99%\s+(\S+)", out)),
        "errors": int(errors.group(1)) if errors else 0,
    }


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found.group(1)


def _milliseconds(text: str) -> float:
    """wrk's "512.00us", "1.20ms" or "1.05s"."""
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]
