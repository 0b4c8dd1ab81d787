"""deploy/ray on a Ray cluster of this machine: it places engines, heals them, and gateways lose nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from policies.document import EngineModel
from policies.engine_addresses import EngineConnection
from tests.e2e.conftest import MODEL
from tests.e2e.server import Server, clean_environment, free_port, wait_until
from tests.e2e.test_recovery import MIXED, Stream, mixed, run

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, at its import
    pytest.importorskip("ray", reason="needs pip install 'penstock[ray]'")
    from deploy.ray import engines

ROOT = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT_S = 200.0
HEAL_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


def test_an_address_is_claimed_once_and_only_on_its_node() -> None:
    port = free_port()
    addresses = [f"tcp://127.0.0.9:{port}", f"tcp://127.0.0.1:{port}"]
    address, claimed = engines.claim(addresses, {"127.0.0.1"})
    assert address == addresses[1]
    with pytest.raises(RuntimeError, match=r"none of the addresses .* is free on this node: list more"):
        engines.claim(addresses, {"127.0.0.1"})
    claimed.close()
    engines.claim(addresses, {"127.0.0.1"})[1].close()


def test_engines_of_several_nodes_are_reached_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "the token")
    options = engines.Options(policies="p", model="m", certificate="c.pem", token_env="TOKEN")
    assert options.flags() == ["--certificate", "c.pem", "--token-env", "TOKEN"]
    address = "tls://node-1:7600"
    engine = EngineModel(checkpoint="c", addresses=[address], connection=EngineConnection(token_env="TOKEN"))
    endpoint = engines.endpoint("m", engine, address)
    assert (endpoint.host, endpoint.token) == ("node-1", "the token") and endpoint.tls is not None


@pytest.mark.parametrize(("waits_s", "change"), [([], 0), ([1.5, 0.7], 1), ([0.9, 0.3], 0), ([0.2, 0.0], -1)])
def test_engines_are_wanted_by_their_queues(waits_s: list[float], change: int) -> None:
    metrics = {engines.QUEUE_SECONDS: dict(enumerate(waits_s))}
    context: Any = SimpleNamespace(target_num_replicas=3, aggregated_metrics=metrics)
    assert engines.ByQueue(1.0)(context) == (3 + change, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": MODEL}, "required field `policies`"),
        ({"policies": "builtin", "model": MODEL, "replicas": "2"}, "unknown field `replicas`"),
        ({"policies": "", "model": "other"}, "no model 'other' whose engine has addresses"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(MIXED)
    if arguments.get("policies") == "":
        arguments = arguments | {"policies": str(tmp_path)}
    with pytest.raises(ValueError, match=message):
        engines.build(arguments)


@pytest.fixture
def addresses(tmp_path: Path) -> list[str]:
    found = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    section = f"      addresses: {found}\n      max_running"
    (tmp_path / "models.yaml").write_text(MIXED.replace("      max_running", section))
    return found


@pytest.fixture
def cluster(tmp_path: Path, addresses: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "PENSTOCK_DATA_DIR": str(tmp_path / "data"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.deploy.ray_cluster", str(tmp_path), MODEL, "2", "1.0"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(settings),
    )
    with process:
        yield process
        if process.stdin is not None:
            process.stdin.close()
        process.wait(STOP_TIMEOUT_S)


@pytest.mark.slow  # a Ray cluster takes half a minute to start, and more of a busy machine
@pytest.mark.timeout(600)
def test_an_engine_that_is_killed_under_load_comes_back_and_no_stream_shows_it(
    tmp_path: Path, addresses: list[str], cluster: subprocess.Popen[bytes]
) -> None:
    assert cluster.stdout is not None
    first, pid = cluster.stdout.readline().decode().split()
    assert first in addresses
    gateway = Server(tmp_path / "gateway.log", "--policies", str(tmp_path))
    try:

        def are_ready() -> bool:
            models = httpx.get(gateway.root_url + "/health/ready", timeout=10).json()["models"]
            phases = list(models[MODEL]["targets"])
            return len(phases) == 2 and all(phase.startswith("ready") for phase in phases)

        def kill_one(server: Server, streams: list[Stream]) -> None:
            os.kill(int(pid), signal.SIGKILL)

        wait_until(lambda: gateway.is_ready() and are_ready(), START_TIMEOUT_S, lambda: gateway.log)
        kinds = mixed()
        calm = [stream.answer() for stream in asyncio.run(run(gateway, kinds))]
        stormy = asyncio.run(run(gateway, kinds, kill_one))
        assert [stream.answer() for stream in stormy] == calm
        wait_until(are_ready, HEAL_TIMEOUT_S, lambda: gateway.log)
        assert not Path(f"/proc/{pid}").exists()
    finally:
        gateway.terminate()
