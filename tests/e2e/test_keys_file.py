"""Keys that come and go while two workers serve, in one file that all of them watch."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from gateway.cli.main import main
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server, wait_until
from tests.e2e.upstream import Upstream

POLICIES = """
models:
  remote: {{upstream: {{base_url: {url}}}}}
tenants:
  limited: {{limits: {{requests_per_minute: 1}}}}
"""
HELD_KEY = "sk-canary-2"
IN_FORCE_S = 1.0
SLACK_S = 29.0  # for a busy machine; a file that is read every minute takes longer still


def line(key: str, **fields: str) -> str:
    return json.dumps({"sha256": sha256(key.encode()).hexdigest(), **fields}) + "\n"


def replace(path: Path, *lines: str) -> None:
    new = path.with_name("new")
    new.touch(0o600)
    new.write_text("".join(lines))
    new.replace(path)


@pytest.fixture(scope="module")
def held() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    replace(path, line("sk-1"))
    return path


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer, held: Upstream, path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    folder: Path = tmp_path_factory.mktemp("policies")
    (folder / "all.yaml").write_text(POLICIES.format(url=held.base_url))
    arguments = ("--policies", str(folder), "--workers", "2")
    return start_module_server(*arguments, environment={"PENSTOCK_KEYS_FILE": str(path)})


def ask(server: Server, key: str, text: str = "Hi.") -> httpx.Response:
    """Over a connection of its own: any worker may answer."""
    return httpx.post(
        f"{server.base_url}/chat/completions",
        headers={"authorization": f"Bearer {key}"} if key else {},
        json={"model": "remote", "messages": [{"role": "user", "content": text}]},
        timeout=30,
    )


def is_known(server: Server, key: str) -> set[bool]:
    found = set()
    for _ in range(12):
        headers = {"authorization": f"Bearer {key}"}
        found.add(httpx.get(f"{server.base_url}/models", headers=headers).status_code == 200)
    return found


def until_known(server: Server, key: str, *, known: bool) -> None:
    began_s = time.monotonic()
    wait_until(lambda: is_known(server, key) == {known}, IN_FORCE_S + SLACK_S, lambda: f"{key}: not {known}")
    assert time.monotonic() - began_s < IN_FORCE_S + SLACK_S


def test_a_key_comes_and_goes_and_what_it_began_ends(server: Server, held: Upstream, path: Path) -> None:
    assert ask(server, "").status_code == ask(server, HELD_KEY).status_code == 401
    replace(path, line("sk-1"), line(HELD_KEY))
    until_known(server, HELD_KEY, known=True)
    before = len(held.seen)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(ask, server, HELD_KEY, "hold")
        try:
            wait_until(lambda: len(held.seen) > before, 10, lambda: "not asked")
            replace(path, line("sk-1"), line(HELD_KEY, revoked="2026-01-01T00:00:00Z"))
            until_known(server, HELD_KEY, known=False)
            assert "revoked" in ask(server, HELD_KEY).json()["error"]["message"]
        finally:
            held.released.set()
        assert running.result().status_code == 200
    assert ask(server, "sk-1").status_code == 200
    pages = [httpx.get(f"{server.root_url}/{name}").text for name in ("metrics", "health/ready")]
    digest = sha256(HELD_KEY.encode()).hexdigest()
    for shown in (server.log, ask(server, HELD_KEY).text, *pages):
        assert "canary" not in shown and digest[8:] not in shown


def test_a_broken_file_changes_nothing_also_when_a_worker_restarts(server: Server, path: Path) -> None:
    replace(path, line("sk-1"), line("sk-3", revoked="2026-01-01T00:00:00Z"))
    until_known(server, "sk-3", known=False)
    replace(path, line("sk-1"), line("sk-3"))
    until_known(server, "sk-3", known=True)
    path.write_text("")
    server.wait_metric("penstock_faults_total", lambda count: count >= 2, part="keys", fault="unreadable")
    assert "holds no key" in httpx.get(f"{server.root_url}/health/ready").text
    killed = server.worker_pids()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: len(set(server.worker_pids()) - {*killed}) == 2 and server.is_ready(),
        30,
        lambda: server.log,
    )
    assert is_known(server, "sk-1") == is_known(server, "sk-3") == {True}
    assert is_known(server, "sk-4") == {False}
    replace(path, line("sk-1"), line("sk-4"))
    until_known(server, "sk-4", known=True)
    assert server.log.count("the keys before stay in force") <= 2
    assert sha256(b"sk-1").hexdigest()[8:] not in server.log


def test_a_hundred_changes_under_load_refuse_no_good_key(server: Server, path: Path) -> None:
    ended = threading.Event()

    def load() -> set[int]:
        found = set()
        with httpx.Client(headers={"authorization": "Bearer sk-1"}) as client:
            while not ended.is_set():
                found.add(client.get(f"{server.base_url}/models").status_code)
        return found

    with concurrent.futures.ThreadPoolExecutor() as pool:
        loads = [pool.submit(load) for _ in range(4)]
        try:
            for number in range(100):
                replace(path, line("sk-1"), line(f"sk-more-{number}"))
                time.sleep(0.02)  # some of them are read in between
            until_known(server, "sk-more-99", known=True)
        finally:
            ended.set()
        assert [each.result() for each in loads] == [{200}] * 4
    assert is_known(server, "sk-more-98") == {False}


def test_a_limit_follows_the_rotation_of_its_key(
    server: Server, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ("--file", str(path))
    assert main(["keys", "new", "--tenant", "limited", *file]) == 0
    _, old, _, key_id = capsys.readouterr().out.split()
    until_known(server, old, known=True)
    wait_until(lambda: time.time() % 60 < 50, 15, lambda: "")  # the minute does not end in between
    assert ask(server, old).status_code == 200
    assert main(["keys", "rotate", key_id, "--grace", "1h", *file]) == 0
    new = capsys.readouterr().out.split()[1]
    until_known(server, new, known=True)
    for key in (new, old):  # the count of the other worker may be a second old
        wait_until(lambda key=key: ask(server, key).status_code == 429, 5, lambda: "not limited")
    assert main(["keys", "revoke", key_id, *file]) == 0
    until_known(server, new, known=False)
    assert ask(server, old).status_code == 401


@pytest.mark.parametrize(
    ("mode", "said"), [(0o644, "has mode 0644"), (None, "does not exist: make it with `penstock keys new`")]
)
def test_a_start_without_a_good_file_is_refused(
    mode: int | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "keys"
    if mode is not None:
        path.write_text(line("sk-1"))
        path.chmod(mode)
    monkeypatch.setenv("PENSTOCK_KEYS_FILE", str(path))
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert said in capsys.readouterr().err
