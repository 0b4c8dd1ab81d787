"""Engines that run without a gateway, as on other machines, and a gateway that has none of its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from tests.backend.server.certificates import make_certificates
from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.endpoint_picking import ask, is_serving
from tests.e2e.remote_engine import EndpointPickerProcess, RemoteEngine
from tests.e2e.server import START_TIMEOUT_S, Server, free_port, wait_until
from tests.e2e.test_recovery import MIXED, Stream, mixed, run

SECRETS = {"ENGINES_TOKEN": "a token of thirty-two characters", "OTHER_TOKEN": "another one, of a gateway"}


class Pair:
    """Two engines, with certificates and a token, and the policies of the gateway that asks them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = make_certificates(folder)
        self.addresses = [f"tls://127.0.0.{number}:{free_port()}" for number in (1, 2)]
        self.write(f"addresses: {self.addresses}")
        self.engines = [self.start(number) for number in range(2)]

    def write(self, place: str, token: str = "ENGINES_TOKEN", more: str = "") -> None:
        """The policies: where the engines are, and what the gateway shows them."""
        shown = f"{{ca: ca.pem, certificate: certificate.pem, key: key.pem, token_env: {token}}}"
        keys = f"      {place}\n      connection: {shown}\n{more}      max_running"
        (self.folder / "models.yaml").write_text(MIXED.replace("      max_running", keys))

    def start(self, number: int) -> RemoteEngine:
        """Start an engine, with the gateway's policies."""
        log, files = self.folder / f"engine-{number}.log", self.files
        shown = ["--certificate", files.certificate, "--key", files.key, "--ca", files.ca]
        return RemoteEngine(
            log,
            *("--policies", str(self.folder), "--listen", self.addresses[number]),
            *(*shown, "--token-env", "ENGINES_TOKEN"),
            secrets=SECRETS,
        )

    def is_ready(self) -> bool:
        """Whether both serve."""
        assert all(each.process.poll() is None for each in self.engines), self.engines[0].log
        return all('"ready"' in each.log for each in self.engines)

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
    wait_until(pair.is_ready, START_TIMEOUT_S, lambda: pair.engines[0].log)
    server = start_module_server("--policies", str(pair.folder), environment=SECRETS)
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


def of_each(server: Server, pair: Pair, metric: str) -> list[float]:
    """A metric of each engine."""
    return [server.metric(metric, model=MODEL, replica=address) for address in pair.addresses]


def busiest(server: Server, pair: Pair) -> int:
    """The number of the engine with the most streams."""
    running = "penstock_engine_running_requests"
    wait_until(lambda: max(of_each(server, pair, running)) > 1, 60, lambda: "no stream runs")
    counts = of_each(server, pair, running)
    return counts.index(max(counts))


@pytest.fixture(scope="module")
def calm(gateway: Server) -> list[object]:
    """The answers to `mixed` while nothing happens."""
    return [stream.answer() for stream in asyncio.run(run(gateway, mixed()))]


def test_streams_outlive_an_engine_elsewhere(pair: Pair, gateway: Server, calm: list[object]) -> None:
    assert gateway.engine_pids() == []
    killed: list[int] = []

    def kill_one(server: Server, streams: list[Stream]) -> None:
        killed.append(busiest(server, pair))
        pair.engines[killed[0]].send(signal.SIGKILL)

    stormy = asyncio.run(run(gateway, mixed(), kill_one))
    assert [stream.answer() for stream in stormy] == calm
    (number,) = killed
    wait_until(
        lambda: phases(gateway)[number].startswith(f"away at {pair.addresses[number]}: cannot be reached"),
        60,
        lambda: str(phases(gateway)),
    )
    pair.engines[number].close()
    pair.engines[number] = pair.start(number)
    wait_phases(gateway, "ready", "ready")


def test_streams_outlive_an_engine_that_no_packet_comes_from(
    pair: Pair, gateway: Server, calm: list[object]
) -> None:
    """Nothing ends the connection: it counts as lost when heartbeats are missing."""
    stopped: list[RemoteEngine] = []

    def stop_one(server: Server, streams: list[Stream]) -> None:
        stopped.append(pair.engines[busiest(server, pair)])
        stopped[0].send(signal.SIGSTOP)

    stormy = asyncio.run(run(gateway, mixed()[:4], stop_one))
    assert [stream.answer() for stream in stormy] == calm[:4]
    wait_until(lambda: "sent no heartbeat for" in gateway.log, 60, lambda: gateway.log)
    stopped[0].send(signal.SIGCONT)
    wait_phases(gateway, "ready", "ready")


def reload(server: Server, pair: Pair, place: str, **changes: str) -> None:
    """Serve other policies, and wait until they are in force."""
    before = server.metric("penstock_policy_reloads_total", outcome="changed")
    pair.write(place, **changes)
    server.process.send_signal(signal.SIGHUP)
    server.wait_metric("penstock_policy_reloads_total", lambda n: n > before, 120, outcome="changed")


def test_what_does_not_fit_is_refused_by_name(pair: Pair, gateway: Server) -> None:
    both = f"addresses: {pair.addresses}"
    reload(gateway, pair, both, more="      kv_dtype: int8\n")
    refused = [
        f"refused at {each}: its kv_dtype is float32, that of the policies int8" for each in pair.addresses
    ]
    wait_phases(gateway, *refused)
    up, why = "penstock_engine_up", "penstock_engine_refused"
    assert gateway.metric(up) == 0 and gateway.metric(why, model=MODEL, reason="kv_dtype") == 2

    reload(gateway, pair, both, token="OTHER_TOKEN")
    wait_phases(gateway, *[f"away at {each}: refuses this gateway: the token" for each in pair.addresses])
    assert all("was refused: has another token" in engine.log for engine in pair.engines)

    # The port of the other, by a name: one process must not count twice.
    twin = pair.addresses[0].replace("127.0.0.1", "localhost")
    reload(gateway, pair, f"addresses: ['{pair.addresses[0]}', '{twin}']")
    wait_until(lambda: sum("it is the process at tls://" in each for each in phases(gateway)) == 1, 60, str)
    assert gateway.metric(up) == 1

    port = pair.addresses[0].rpartition(":")[2]
    reload(gateway, pair, f"dns: localhost:{port}")
    wait_until(lambda: any(each.startswith("ready at") for each in phases(gateway)), 60, str)
    (stream,) = asyncio.run(run(gateway, mixed()[:1]))
    assert stream.answer()
    reload(gateway, pair, both)
    wait_phases(gateway, "ready", "ready")
    logs = gateway.log + pair.engines[0].log + pair.engines[1].log
    assert not any(token in logs for token in SECRETS.values())


def test_an_engine_drains(pair: Pair, gateway: Server, calm: list[object]) -> None:
    drained: list[int] = []

    def end_one(server: Server, streams: list[Stream]) -> None:
        drained.append(busiest(server, pair))
        assert pair.engines[drained[0]].terminate() == 0

    stormy = asyncio.run(run(gateway, mixed()[:4], end_one))
    assert [stream.answer() for stream in stormy] == calm[:4]
    pair.engines[drained[0]] = pair.start(drained[0])
    wait_phases(gateway, "ready", "ready")


def test_an_endpoint_picker_agrees_with_the_gateway(pair: Pair, gateway: Server, tmp_path: Path) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Picked " * 40}], "max_tokens": 4}
    tokens = "penstock_engine_generated_tokens_total"
    before = of_each(gateway, pair, tokens)
    httpx.post(gateway.base_url + "/chat/completions", json=body, timeout=60).raise_for_status()
    wait_until(lambda: of_each(gateway, pair, tokens) != before, 10, lambda: gateway.log)
    held_by = [old != new for old, new in zip(before, of_each(gateway, pair, tokens), strict=True)].index(
        True
    )
    listen = f"127.0.0.1:{free_port()}"
    arguments = ("--policies", str(pair.folder), "--listen", listen, "--endpoint-port", "8123")
    picker = EndpointPickerProcess(tmp_path / "picker.log", *arguments, secrets=SECRETS)
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
