"""The cache with a real engine, a real encoder and the shipped verifier."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import yaml

from tests.cache.redis_server import RedisServer
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server, wait_until
from tests.e2e.upstream import Upstream

POLICIES = {
    "cache": {"mode": "semantic"},
    "models": {
        "pico-small": {"engine": {"checkpoint": "builtin:pico-small", "kv_cache_bytes": 33554432}},
        "minilm": {"encoder": {"checkpoint": "builtin:all-minilm-l6-v2"}},
    },
}


def test_what_is_served_by_meaning_and_what_is_not(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(POLICIES))
    server = start_server("--policies", str(tmp_path))

    def ask(text: str, system: str = "Be brief.") -> tuple[str, str]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        body = {"model": "pico-small", "messages": messages, "max_tokens": 32}
        response = httpx.post(server.base_url + "/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        content: str = response.json()["choices"][0]["message"]["content"]
        return response.headers["x-penstock-cache"], content

    first = ask("Good morning, how are you?")
    assert first[0] == "miss"
    assert ask("Good morning, how are you?") == ("exact", first[1])
    assert ask("Good morning! How are you?") == ("semantic", first[1])
    assert ask("Good morning! How are you?", "Be rude.")[0] == "miss"
    assert ask("What is 17 plus 25?") == ("miss", "42")
    # Another number is another question, however alike; the stored answer is a draft, which changes nothing.
    assert ask("What is 17 plus 26?") == ("near", "43")
    assert (
        ask("What is the balance of my account?")[0] == ask("What is the balance of my account?")[0] == "miss"
    )
    server.settle()
    assert server.metric("penstock_cache_requests_total", outcome="semantic") == 1


def test_replicas_share_answers_through_redis(
    start_server: StartServer, upstream: Upstream, tmp_path: Path
) -> None:
    redis = RedisServer(tmp_path)
    policies = tmp_path / "policies"
    policies.mkdir()
    model = {"upstream": {"base_url": upstream.base_url}}
    sections = {"cache": {"mode": "exact", "redis": {}}, "models": {"m": model}}
    (policies / "models.yaml").write_text(yaml.safe_dump(sections))
    environment = {"PENSTOCK_REDIS_URL": redis.url}
    one, other = [start_server("--policies", str(policies), environment=environment) for _ in range(2)]

    def ask(server: Server, text: str) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        response = httpx.post(server.base_url + "/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        return response.headers["x-penstock-cache"]

    try:
        assert ask(one, "shared?") == "miss"
        wait_until(lambda: ask(other, "shared?") == "exact", 20, lambda: other.log)
        invalidated = httpx.post(other.base_url + "/cache/invalidate", json={"model": "m"}, timeout=20)
        assert invalidated.json()["invalidated"] >= 1
        wait_until(lambda: ask(one, "shared?") == "miss", 20, lambda: one.log)
        redis.kill()
        assert [ask(server, "without Redis") for server in (one, other, one)] == ["miss", "miss", "exact"]
        refused = httpx.post(other.base_url + "/cache/invalidate", json={"model": "m"}, timeout=20)
        assert refused.status_code == 503
        assert redis.url not in one.log + other.log
    finally:
        redis.kill()


def test_a_missing_redis_url_refuses_the_start(start_server: StartServer, tmp_path: Path) -> None:
    sections = {"cache": {"redis": {"url_env": "MY_REDIS"}}, "models": POLICIES["models"]}
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(sections))
    command = [sys.executable, "-m", "gateway.cli", "serve", "--policies", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "MY_REDIS, which is not set" in ended.stderr


def test_a_snapshot_keeps_answers_over_a_restart(
    start_server: StartServer, upstream: Upstream, tmp_path: Path
) -> None:
    sections = {
        "cache": {"mode": "exact", "memory": {"snapshot_path": "state/cache"}},
        "models": {"m": {"upstream": {"base_url": upstream.base_url}}},
    }
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(sections))
    outcomes = []
    for _ in range(2):
        server = start_server("--policies", str(tmp_path))
        body = {"model": "m", "messages": [{"role": "user", "content": "kept?"}]}
        response = httpx.post(server.base_url + "/chat/completions", json=body, timeout=60)
        outcomes.append(response.headers["x-penstock-cache"])
        assert server.terminate() == 0
    file = tmp_path / "state" / "cache.0"
    assert outcomes == ["miss", "exact"] and file.is_file()
    server = start_server("--policies", str(tmp_path))
    answer = httpx.post(server.base_url + "/cache/invalidate", json={"model": "m"}, timeout=20)
    assert answer.json()["invalidated"] == 1 and not file.exists()  # a crash must not bring it back
