"""Engines that run without a gateway, as on other machines, and a gateway that has none of its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.endpoint_picking import ask, is_serving
from tests.e2e.remote_engine import EndpointPickerProcess, RemoteEngine
from tests.e2e.server import START_TIMEOUT_S, Server, free_port, wait_until
from tests.e2e.test_recovery import MIXED, Stream, mixed, run


class Pair:
    """Two engines and the gateway that asks them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses = [f"tcp://127.0.0.{number}:{free_port()}" for number in (1, 2)]
        (folder / "models.yaml").write_text(
            MIXED.replace("      max_running", f"      addresses: {self.addresses}\n      max_running")
        )
        self.engines = [self.start(number) for number in range(2)]

    def start(self, number: int) -> RemoteEngine:
        """Start an engine, with the gateway's policies."""
        log = self.folder / f"engine-{number}.log"
        return RemoteEngine(log, "--policies", str(self.folder), "--listen", self.addresses[number])

    def close(self) -> None:
        """End both."""
        for engine in self.engines:
            engine.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("engines"))
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def gateway(pair: Pair, start_module_server: StartServer) -> Server:
    server = start_module_server("--policies", str(pair.folder))
    wait_phases(server, "ready", "ready")
    return server


def phases(server: Server) -> list[str]:
    models = httpx.get(server.root_url + "/health/ready", timeout=10).json()["models"]
    return list(models[MODEL]["targets"])


def wait_phases(server: Server, *wanted: str) -> None:
    """Wait until the replicas' phases begin with these words."""
    wait_until(
        lambda: all(map(str.startswith, phases(server), wanted)),
        START_TIMEOUT_S,
        lambda: f"{phases(server)}\n{server.log}",
    )


def generated(server: Server, pair: Pair) -> list[float]:
    """Tokens that each engine has made."""
    name = "penstock_engine_generated_tokens_total"
    return [server.metric(name, model=MODEL, replica=address) for address in pair.addresses]


def test_streams_outlive_an_engine_elsewhere(pair: Pair, gateway: Server) -> None:
    assert gateway.engine_pids() == []
    kinds = mixed()
    calm = [stream.answer() for stream in asyncio.run(run(gateway, kinds))]
    assert min(generated(gateway, pair)) > 300

    def kill_one(server: Server, streams: list[Stream]) -> None:
        pair.engines[0].send(signal.SIGKILL)

    stormy = asyncio.run(run(gateway, kinds, kill_one))
    assert [stream.answer() for stream in stormy] == calm
    wait_phases(gateway, "away: cannot be reached", "ready")
    assert f"the engine at {pair.addresses[0]} " in gateway.log
    pair.engines[0].close()
    pair.engines[0] = pair.start(0)
    wait_phases(gateway, "ready", "ready")


def test_an_engine_drains(pair: Pair, gateway: Server) -> None:
    assert pair.engines[1].terminate() == 0
    wait_phases(gateway, "ready", "away")
    pair.engines[1] = pair.start(1)
    wait_phases(gateway, "ready", "ready")


def test_an_endpoint_picker_agrees_with_the_gateway(pair: Pair, gateway: Server, tmp_path: Path) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Picked " * 40}], "max_tokens": 4}
    before = generated(gateway, pair)
    httpx.post(gateway.base_url + "/chat/completions", json=body, timeout=60).raise_for_status()
    wait_until(lambda: generated(gateway, pair) != before, 10, lambda: gateway.log)
    held_by = [old != new for old, new in zip(before, generated(gateway, pair), strict=True)].index(True)
    listen = f"127.0.0.1:{free_port()}"
    arguments = ("--policies", str(pair.folder), "--listen", listen, "--endpoint-port", "8123")
    picker = EndpointPickerProcess(tmp_path / "picker.log", *arguments)
    try:
        with grpc.insecure_channel(listen) as channel:
            wait_until(lambda: is_serving(channel), START_TIMEOUT_S, lambda: picker.log)
            hosts = [f"127.0.0.{number}:8123" for number in (1, 2)]
            wait_until(
                lambda: all(ask(channel, body, [host]) == host for host in hosts), 30, lambda: picker.log
            )
            assert ask(channel, body) == hosts[held_by]
            assert ask(channel, body, ["10.0.0.1:80"]) == 503
        assert picker.terminate() == 0
    finally:
        picker.close()
