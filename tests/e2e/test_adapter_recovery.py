"""An engine that is killed restarts with the adapters that were loaded at run time."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import httpx

from gateway.checkpoints import BUILTIN_ADAPTERS
from tests.e2e.conftest import StartServer
from tests.e2e.server import START_TIMEOUT_S, Server, wait_until

POLICY = """
models:
  pico:
    engine:
      checkpoint: builtin:pico-small
      kv_cache_bytes: 33554432
      adapters:
        kept: {path: adapters/kept}
        taken-away: {path: "builtin:si"}
      adapter_loading: {principals: [default], folders: [adapters]}
"""


def ask(server: Server, model: str) -> httpx.Response:
    messages = [{"role": "user", "content": "Convert 5 km to m."}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 24}
    return httpx.post(server.base_url + "/chat/completions", json=body, timeout=60)


def text(server: Server, model: str) -> str:
    """Its answer. Retries: on a busy machine an engine may restart more slowly than a request waits."""
    answer = ask(server, model)
    if answer.status_code == 503:
        wait_until(server.is_ready, START_TIMEOUT_S, lambda: "the engine did not come back")
        answer = ask(server, model)
    assert answer.status_code == 200, answer.text
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def post(server: Server, what: str, **body: str) -> None:
    answer = httpx.post(f"{server.base_url}/{what}_lora_adapter", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


def listed(server: Server) -> set[str]:
    return {entry["id"] for entry in httpx.get(server.base_url + "/models", timeout=5).json()["data"]}


def test_kill_nine_with_adapters(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(POLICY)
    for name, source in (
        ("kept", "json"),
        ("loaded", "german"),
        ("gone", "formal"),
        ("changed", "codewords"),
    ):
        shutil.copytree(BUILTIN_ADAPTERS / source, tmp_path / "adapters" / name)
    server = start_server("--policies", str(tmp_path))
    for name in ("loaded", "gone", "changed"):
        post(server, "load", lora_name=name, lora_path=str(tmp_path / "adapters" / name))
    post(server, "unload", lora_name="taken-away")
    before = {model: text(server, model) for model in ("pico", "kept", "loaded", "pico:changed")}
    assert len(set(before.values())) == 4
    shutil.rmtree(tmp_path / "adapters" / "gone")
    shutil.copytree(BUILTIN_ADAPTERS / "formal", tmp_path / "adapters" / "changed", dirs_exist_ok=True)
    (pid,) = server.engine_pids()
    os.kill(pid, signal.SIGKILL)

    # Sent while the engine restarts: the request waits, and the adapters are there again.
    assert text(server, "loaded") == before["loaded"]
    assert text(server, "kept") == before["kept"] and text(server, "pico") == before["pico"]
    for model in ("gone", "changed", "pico:changed"):
        answer = ask(server, model)
        assert answer.status_code == 404 and "Load it again" in answer.json()["error"]["message"]
    assert ask(server, "taken-away").status_code == 404
    assert listed(server) == {"pico", "kept", "loaded"}

    post(server, "load", lora_name="changed", lora_path=str(tmp_path / "adapters" / "changed"))
    assert text(server, "changed") != before["pico:changed"]
    assert server.terminate() == 0
