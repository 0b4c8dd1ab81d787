"""Wrong settings of an engine while it answers, and clients that leave it midway: others notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from gateway.admin.access import OWN_HEADER
from gateway.cli.main import main
from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import Server
from tests.e2e.test_openai_sdk import ask
from tests.e2e.test_recovery import DRAWN, LONG, SCHEMA, Kind, Stream, chat, run

POLICIES = """\
admin: {principals: [default]}
models:
  pico-small:
    engine:
      checkpoint: builtin:pico-small
      kv_cache_bytes: 67108864
      max_running: 32
      enforce_eager: true
      speculative: {drafter: ngram}
      adapters: {german: {path: "builtin:german"}}
"""
SETTINGS = f"models.{MODEL}.engine"
SHARES = """\
      device: cuda
      gpu_memory: 0.6
  other: {engine: {checkpoint: "builtin:pico-small", device: "cuda:0", gpu_memory: 0.5}}
"""
CUTS = 40


class Running:
    """A server and its policy file, which each test finds as it was."""

    def __init__(self, server: Server, path: Path, canary: str) -> None:
        self.server, self.path, self.canary = server, path, canary
        self.calm = asyncio.run(run(server, self.kinds()))

    def kinds(self) -> list[Kind]:
        """Streams of some length with a canary in their prompts: drawn by a seed, and of an adapter."""
        prompt = ask(f"Write about {self.canary}.")
        return [
            chat(**LONG, **DRAWN, messages=prompt, n=2, presence_penalty=0.5, logprobs=True),
            chat(**LONG, **DRAWN, messages=prompt, model=f"{MODEL}:german"),
        ]

    def version(self) -> object:
        return httpx.get(self.server.root_url + "/admin/policies", timeout=30).json()["version"]

    def reload(self) -> httpx.Response:
        headers = {"content-type": "application/json", OWN_HEADER: "test"}
        return httpx.post(self.server.root_url + "/admin/policies", headers=headers, timeout=300)

    def refusals(self, *texts: str) -> list[str]:
        """What reloads of these policies answer, which change neither version nor streams nor engine."""
        version, pids = self.version(), self.server.engine_pids()
        found: list[str] = []

        def change(server: Server, streams: list[Stream]) -> None:
            for text in texts:
                self.path.write_text(text)
                response = self.reload()
                assert response.status_code == 400, response.text
                found.append(
                    response.json()["error"]["message"].removeprefix("The policies were not changed: ")
                )

        streams = asyncio.run(run(self.server, self.kinds(), change))
        assert [each.answer() for each in streams] == [each.answer() for each in self.calm]
        assert self.version() == version and {*pids} <= {*self.server.engine_pids()}
        return found


@pytest.fixture(scope="module")
def started(
    start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory, canary: str
) -> Running:
    """An engine with drafts, adapters and without graphs."""
    path = tmp_path_factory.mktemp("policies") / "p.yaml"
    path.write_text(POLICIES)
    return Running(start_module_server("--policies", str(path.parent)), path, canary)


@pytest.fixture
def running(started: Running) -> Iterator[Running]:
    """Afterwards it has its policies again, and no log has a traceback or what was asked."""
    yield started
    started.path.write_text(POLICIES)
    log = started.server.log
    assert "Traceback" not in log and started.canary not in log


WRONG = {
    POLICIES + "      device: cuda:-1\n": (11, f"{SETTINGS}.device must be a string of the form "),
    POLICIES + "      gpu_memory: 85%\n": (11, f"{SETTINGS}.gpu_memory must be a number >= 0.05 and <= 0.98"),
    POLICIES + SHARES: (
        13,
        "models.other.engine.gpu_memory: the engines of pico-small, other take 1.1 of the memory of cuda:0",
    ),
    POLICIES + "      num_pages: .nan\n": (11, f"{SETTINGS}.num_pages must be a whole number >= 1"),
    POLICIES.replace("true", "maybe"): (8, f"{SETTINGS}.enforce_eager must be true or false, not 'maybe'"),
    POLICIES.replace("ngram", "eagle"): (9, f"{SETTINGS}.speculative: drafter 'eagle'"),
}
"""Policies, and the line and beginning of what `penstock check` and a reload say of them."""


def test_settings_that_the_check_refuses(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    for text, found in zip(WRONG, running.refusals(*WRONG), strict=True):
        line, message = WRONG[text]
        assert found.startswith(f"{running.path}:{line}:") and message in found, found
        running.path.write_text(text)
        assert main(["check", str(running.path.parent)]) == 2
        assert found in capsys.readouterr().err


def test_a_card_that_only_the_engine_misses(running: Running) -> None:
    (found,) = running.refusals(POLICIES + "      device: cuda:7\n")
    assert found.startswith(
        f"engine {MODEL!r} cannot serve: model {MODEL!r} is configured for device 'cuda:7', but torch finds "
    )
    assert "the policies were not changed" in running.server.log


def cut_kinds(running: Running) -> list[dict[str, Any]]:
    """Requests that have everything together."""
    strict = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": SCHEMA}}
    words = {"type": "content", "content": "apple, pear, stone, water, wheel " * 8}
    common = {"messages": ask(f"Write about {running.canary}."), **DRAWN, "stream": True, "max_tokens": 600}
    return [
        common | {"model": MODEL, "n": 3, "logprobs": True, "top_logprobs": 5, "prediction": words},
        common | {"model": f"{MODEL}:german", "response_format": strict, "frequency_penalty": 1.5},
        common | {"model": MODEL, "speculative": {"drafter": "suffix", "max_tokens": 8}, "prediction": words},
        common | {"model": f"{MODEL}:german", "n": 2, "ignore_eos": True, "repetition_penalty": 1.2},
    ]


async def cut(server: Server, bodies: list[dict[str, Any]]) -> None:
    """All at once; each client leaves after some events, the first ones before any."""

    async def leave(number: int, body: dict[str, Any], session: aiohttp.ClientSession) -> None:
        async with session.post(server.base_url + "/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            for _ in range(number % 12):
                if not await response.content.readline():
                    return
            response.close()

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for number, body in enumerate(bodies):
            group.create_task(leave(number, body, session))


def test_clients_that_leave_hurt_none_that_stay(running: Running) -> None:
    bodies = (cut_kinds(running) * CUTS)[:CUTS]

    def storm(server: Server, streams: list[Stream]) -> None:
        asyncio.run(cut(server, bodies))

    server = running.server
    streams = asyncio.run(run(server, running.kinds(), storm))
    assert [each.answer() for each in streams] == [each.answer() for each in running.calm]
    server.settle()
    for name in ("running", "queue"):
        server.wait_metric(f"penstock_engine_{name}_requests", lambda count: count == 0)
    total = server.metric("penstock_engine_total_pages")
    server.wait_metric("penstock_engine_free_pages", lambda count: count == total)
