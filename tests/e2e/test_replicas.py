"""Two engine processes of one model: both work, either may die, and their number changes under load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec

from router.log import Record
from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import Server, wait_until
from tests.e2e.test_recovery import MIXED, STREAMS, Kind, Stream, chat, mixed, run

TWO = MIXED.replace("      max_running", "      replicas: 2\n      drain_handover_s: 0.1\n      max_running")
ONE = TWO.replace("replicas: 2", "replicas: 1")


def kill_one(server: Server, streams: list[Stream]) -> None:
    os.kill(server.engine_pids()[0], signal.SIGKILL)


def phases(server: Server) -> object:
    return httpx.get(server.root_url + "/health/ready", timeout=10).json()["models"][MODEL]["targets"]


def serve(server: Server, path: Path, text: str) -> Callable[[Server, list[Stream]], None]:
    """Changes the policies while streams run, and waits until that version answers."""

    def change(_: Server, streams: list[Stream]) -> None:
        path.write_text(text)
        before = server.metric("penstock_policy_reloads_total", outcome="changed")
        server.process.send_signal(signal.SIGHUP)
        server.wait_metric("penstock_policy_reloads_total", lambda n: n > before, 120, outcome="changed")

    return change


async def load(server: Server, kind: Kind, is_enough: Callable[[], bool]) -> list[Any]:
    """The answers to ten clients who ask again and again until it is enough, or for two minutes."""
    end_s = time.monotonic() + 120
    answers = []

    async def ask_again(session: aiohttp.ClientSession) -> None:
        while not answers or (not is_enough() and time.monotonic() < end_s):
            stream = Stream(kind)
            await stream.read(session, server, asyncio.Semaphore(0))
            answers.append(stream.answer())

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(ask_again(session) for _ in range(10)))
    return answers


def test_either_may_die_and_their_number_may_change(start_server: StartServer, tmp_path: Path) -> None:
    policies = tmp_path / "models.yaml"
    policies.write_text(TWO)
    log = tmp_path / "decisions"
    server = start_server("--policies", str(tmp_path), environment={"PENSTOCK_DECISION_LOG": str(log)})
    wait_until(lambda: phases(server) == ["ready", "ready"], 120, lambda: str(phases(server)))
    kinds = (mixed() * STREAMS)[:STREAMS]
    calm = [stream.answer() for stream in asyncio.run(run(server, kinds))]
    for number in "01":
        name = "penstock_engine_generated_tokens_total"
        server.wait_metric(name, lambda tokens: tokens > 300, model=MODEL, replica=number)

    stormy = asyncio.run(run(server, kinds, kill_one))
    assert [stream.answer() for stream in stormy] == calm
    wait_until(lambda: phases(server) == ["ready", "ready"], 120, lambda: str(phases(server)))

    _, restarted = server.engine_pids()  # the first replica again, as the later process
    long = [chat(ignore_eos=True, min_tokens=900, max_tokens=900)] * 4
    undisturbed = [stream.answer() for stream in asyncio.run(run(server, long))]
    for text, num_engines in ((ONE, 1), (TWO, 2)):
        changed = asyncio.run(run(server, long, serve(server, policies, text)))
        assert [stream.answer() for stream in changed] == undisturbed
        wait_until(
            lambda expected=num_engines: len(server.engine_pids()) == expected,  # type: ignore[misc]
            120,
            lambda: str(server.engine_pids()),
        )
    assert restarted in server.engine_pids() and "requests handed back" in server.log
    assert server.terminate() == 0
    records = [msgspec.json.decode(line, type=Record) for line in log.read_text().splitlines()]
    placed = [placement for record in records for placement in record.placements]
    assert {placement.chosen for placement in placed} == {0, 1}


def test_they_sleep_wake_and_follow_the_load(start_server: StartServer, tmp_path: Path) -> None:
    span = "{min: 0, max: 2, queue_s: 0.02, sleep_after_s: 2}"
    text = TWO.replace("replicas: 2", f"replicas: {span}").replace("max_running: 64", "max_running: 2")
    (tmp_path / "models.yaml").write_text(text)
    environment = {"PENSTOCK_ENGINE_START_TIMEOUT_S": "300"}  # on a busy machine
    server = start_server("--policies", str(tmp_path), "--workers", "2", environment=environment)
    assert phases(server) == ["asleep", "asleep"] and server.engine_pids() == []
    assert not server.samples("penstock_engine_up")  # no alert for what is to be so
    body = {"model": MODEL, "prompt": "a", "max_tokens": 4}
    assert httpx.post(server.base_url + "/completions", json=body, timeout=300).status_code == 200
    more = "1 of at most 2 processes of 'pico-small' run: one more starts"
    kind = chat(ignore_eos=True, min_tokens=300, max_tokens=300)
    answers = asyncio.run(load(server, kind, lambda: more in server.log))
    assert more in server.log
    assert len(answers) >= 10 and all(answer == answers[0] for answer in answers)
    wait_until(lambda: server.engine_pids() == [], 120, lambda: str(phases(server)))
    wait_until(lambda: phases(server) == ["asleep", "asleep"], 20, lambda: str(phases(server)))
    assert server.terminate() == 0
