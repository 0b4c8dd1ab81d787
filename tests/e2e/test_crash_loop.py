"""An engine that fails again and again says why; other models serve, and it recovers. Hung workers, too."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx

from gateway.checkpoints import checkpoint_folder
from tests.e2e.conftest import StartServer
from tests.e2e.server import START_TIMEOUT_S, Server, command_line, descendants, wait_until

POLICY = """
models:
  fragile: {engine: {checkpoint: CHECKPOINT, kv_cache_bytes: 33554432}}
  sentences: {encoder: {checkpoint: "builtin:all-minilm-l6-v2"}}
"""


def failure(server: Server) -> dict[str, Any]:
    state = httpx.get(server.root_url + "/health/ready", timeout=5).json()["models"]["fragile"]
    return dict(state.get("failure", {}))


def test_a_checkpoint_that_breaks_while_it_is_served(start_server: StartServer, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_folder("builtin:pico-small"), checkpoint)
    (tmp_path / "models.yaml").write_text(POLICY.replace("CHECKPOINT", str(checkpoint)))
    server = start_server("--policies", str(tmp_path))
    config = checkpoint / "config.json"
    config.rename(tmp_path / "kept.json")
    (engine,) = server.engine_pids()
    os.kill(engine, signal.SIGKILL)

    wait_until(lambda: bool(failure(server)), START_TIMEOUT_S, lambda: server.log)
    found = failure(server)
    assert found["count"] >= 3 and found["cause"].startswith("exit code 2: ")
    assert str(config) in found["cause"] and found["retry_in_s"] < 60
    assert server.log.count("engine 'fragile' has failed") == 1
    texts = {"model": "sentences", "input": "hello"}
    answer = httpx.post(server.base_url + "/embeddings", json=texts, timeout=30)
    assert answer.status_code == 200, "other models serve"

    (tmp_path / "kept.json").rename(config)
    wait_until(server.is_ready, START_TIMEOUT_S, lambda: server.log)
    assert not failure(server)
    wait_until(lambda: "engine 'fragile' is ready after" in server.log, 10, lambda: server.log)
    assert server.terminate() == 0


def test_a_hung_worker_is_replaced(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(POLICY.splitlines()[1] + "\n" + POLICY.splitlines()[3])
    server = start_server("--policies", str(tmp_path))

    def workers() -> set[int]:
        return {p for p in descendants(server.process.pid) if b"gateway.wiring.worker" in command_line(p)}

    (hung,) = workers()
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: len(workers() - {hung}) == 1, START_TIMEOUT_S, lambda: server.log)
    wait_until(server.is_ready, START_TIMEOUT_S, lambda: server.log)
    assert "gateway worker 0 hangs: killing it" in server.log
    assert server.terminate() == 0
