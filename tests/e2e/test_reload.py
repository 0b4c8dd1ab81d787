"""Policies change under load: nothing is dropped, and a broken folder changes nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gateway.admin.access import OWN_HEADER
from gateway.cli.main import main
from tests.e2e.conftest import StartServer
from tests.e2e.server import START_TIMEOUT_S, Server, wait_until
from tests.e2e.test_openai_sdk import ask
from tests.e2e.upstream import Upstream

NUM_CLIENTS = 8
POLICIES = """\
admin: {{principals: [default]}}
models:
  one: {{upstream: {{base_url: "{url}", model: "{target}"}}}}
{more}
routes: {{auto: {{model: one}}}}
probes: {{reaches: {{ask: hello, expect: {{model: {expected}}}}}}}
"""
ENCODER = "  vectors: {encoder: {checkpoint: 'builtin:all-minilm-l6-v2'}}"


@dataclass
class Running:
    """A server and its policy file."""

    server: Server
    path: Path
    upstream: Upstream

    def write(self, target: str = "first", more: str = "", expected: str = "one") -> None:
        text = POLICIES.format(url=self.upstream.base_url, target=target, more=more, expected=expected)
        self.path.write_text(text)

    def versions(self) -> dict[str, object]:
        found = httpx.get(self.server.root_url + "/admin/policies", timeout=30).json()
        assert isinstance(found, dict)
        return found

    def post(self, action: str = "") -> httpx.Response:
        url = f"{self.server.root_url}/admin/policies{action}"
        headers = {"content-type": "application/json", OWN_HEADER: "test"}
        return httpx.post(url, headers=headers, timeout=60)


@dataclass
class Load:
    """Clients that ask without a pause until told to stop."""

    running: Running
    statuses: Counter[int] = field(default_factory=Counter)
    versions: dict[str, str] = field(default_factory=dict)  # request id → version in the answer
    is_over: bool = False

    def __enter__(self) -> Load:
        self.threads = [threading.Thread(target=self._ask) for _ in range(NUM_CLIENTS)]
        for thread in self.threads:
            thread.start()
        self.wait_for(NUM_CLIENTS)
        return self

    def wait_for(self, num_more: int) -> None:
        """Return when that many more requests have been answered."""
        wanted = self.statuses.total() + num_more
        wait_until(lambda: self.statuses.total() >= wanted, 20, lambda: str(self.statuses))

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        for thread in self.threads:
            thread.join()

    def _ask(self) -> None:
        number = 0
        with httpx.Client(base_url=self.running.server.base_url, timeout=30) as client:
            while not self.is_over:
                number += 1
                body = {"model": "auto", "messages": ask("hi"), "stream": number % 2 == 0}
                response = client.post("/chat/completions", json=body)
                self.statuses[response.status_code] += 1
                self.versions[response.headers["x-request-id"]] = response.headers["x-penstock-policy"]
                assert "echo" in response.text


@pytest.fixture(scope="module")
def running(
    start_module_server: StartServer, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Two workers, whose policies a test may change; each test begins with its own."""
    path = tmp_path_factory.mktemp("policies") / "p.yaml"
    made = Running(None, path, upstream)  # type: ignore[arg-type]
    made.write()
    made.server = start_module_server("--policies", str(path.parent), "--workers", "2")
    return made


def test_a_reload_under_load_drops_nothing(running: Running) -> None:
    first = running.versions()["version"]
    before = len(running.upstream.seen)
    with Load(running) as load:
        for number in range(4):
            running.write(target=f"far-{number}")
            response = running.post()
            assert response.status_code == 200, response.text
            load.wait_for(2 * NUM_CLIENTS)
    assert set(load.statuses) == {200}
    reached: dict[str, set[str]] = defaultdict(set)
    for seen in running.upstream.seen[before:]:
        reached[load.versions[seen.headers["x-request-id"]]].add(seen.body["model"])
    assert all(len(models) == 1 for models in reached.values()), "a request has seen two versions"
    assert {"far-0", "far-1", "far-2", "far-3"} <= set().union(*reached.values())
    versions = running.versions()
    assert versions["version"] != first and first in versions["previous"]  # type: ignore[operator]


def test_all_workers_switch_and_the_old_version_ends(running: Running) -> None:
    running.write(target="switched")
    assert running.post().status_code == 200
    version = running.versions()["version"]
    seen = set()
    for _ in range(20):  # new connections: both workers answer some
        body = {"model": "auto", "messages": ask("hi")}
        response = httpx.post(running.server.base_url + "/chat/completions", json=body)
        seen.add((response.headers["x-penstock-policy"], running.upstream.seen[-1].body["model"]))
    assert seen == {(version, "switched")}


def test_a_broken_folder_keeps_the_old_version_and_says_why(running: Running) -> None:
    version = running.versions()["version"]
    running.write(expected="two")
    response = running.post()
    assert response.status_code == 400 and response.json()["error"]["code"] == "policies_not_changed"
    assert "probe 'reaches': expected model 'two', got 'one'" in response.json()["error"]["message"]
    found = running.versions()
    assert found["version"] == version and "probe 'reaches'" in str(found["error"])
    ready = httpx.get(running.server.root_url + "/health/ready")
    assert ready.status_code == 200 and "penstock policy versions" in ready.json()["policies"]["error"]
    assert "the policies were not changed" in running.server.log
    running.server.wait_metric("penstock_policy_reloads_total", lambda n: n >= 1, outcome="failed")


def test_a_file_that_is_cut_under_load_is_refused_until_it_is_whole(running: Running) -> None:
    running.write(target="whole")
    running.post()
    version, whole = running.versions()["version"], running.path.read_text()
    administrators = whole.index("models:")
    cuts = {
        "": "is empty now",
        whole[administrators:]: "admin.principals would name no caller any more",
    }
    with Load(running) as load:
        for text, message in cuts.items():
            running.path.write_text(text)
            response = running.post()
            assert response.status_code == 400 and message in response.json()["error"]["message"]
            assert running.versions()["version"] == version
            load.wait_for(NUM_CLIENTS)
        running.path.unlink()
        assert "holds no *.yaml file" in running.post().json()["error"]["message"]
        running.path.write_text(whole)
        wait_until(lambda: running.versions()["error"] == "", 20, lambda: running.server.log)
    assert set(load.statuses) == {200}
    assert "policies" not in httpx.get(running.server.root_url + "/health/ready").json()


def test_a_changed_file_is_noticed(running: Running) -> None:
    version = running.versions()["version"]
    running.write(target="noticed")
    wait_until(lambda: running.versions()["version"] != version, 20, lambda: running.server.log)
    assert running.versions()["error"] == ""


def test_sighup_reloads(running: Running) -> None:
    version = running.versions()["version"]
    running.write(target=f"hup-{time.time_ns()}")
    running.server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: running.versions()["version"] != version, 20, lambda: running.server.log)


def test_rollback_leads_to_the_version_before(running: Running) -> None:
    running.write(target="good")
    running.post()
    good = running.versions()["version"]
    running.write(target="bad")
    running.post()
    assert running.versions()["version"] != good
    response = running.post("/rollback")
    assert response.status_code == 200 and running.versions()["version"] == good
    body = {"model": "auto", "messages": ask("hi")}
    httpx.post(running.server.base_url + "/chat/completions", json=body)
    assert running.upstream.seen[-1].body["model"] == "good"


def test_the_command_line_manages_versions(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--url", running.server.root_url]
    running.write(target="by command")
    assert main(["policy", "reload", *url]) == 0 and "is served" in capsys.readouterr().out
    assert main(["policy", "versions", *url]) == 0
    assert capsys.readouterr().out.startswith(f"current   {running.versions()['version']}\nprevious  ")
    assert main(["policy", "rollback", *url]) == 0
    running.write(expected="two")
    assert main(["policy", "reload", *url]) == 2
    assert "expected model 'two', got 'one'" in capsys.readouterr().err


def test_a_restarted_worker_serves_the_current_version(running: Running) -> None:
    running.write(target="current")
    running.post()
    expected = running.versions()
    first = running.server.worker_pids()
    os.kill(first[0], signal.SIGKILL)
    wait_until(
        lambda: len(set(running.server.worker_pids()) - set(first)) == 1, 20, lambda: running.server.log
    )
    wait_until(running.server.is_ready, START_TIMEOUT_S, lambda: running.server.log)
    assert all(running.versions() == expected for _ in range(20))


def test_processes_start_and_end_with_the_versions_that_need_them(running: Running) -> None:
    running.write(target="with vectors", more=ENCODER)
    with Load(running) as load:
        assert running.post().status_code == 200
        body = {"model": "vectors", "input": "hello"}
        answer = httpx.post(running.server.base_url + "/embeddings", json=body, timeout=30)
        assert answer.status_code == 200
        counted = {"model": "vectors", "status": "2xx"}
        running.server.wait_metric("penstock_requests_total", lambda n: n == 1, **counted)
        running.write(target="without")
        assert running.post().status_code == 200
        assert httpx.post(running.server.base_url + "/embeddings", json=body).status_code == 404
    assert set(load.statuses) == {200}


def test_an_encoder_that_did_not_change_goes_on(running: Running) -> None:
    wait_until(lambda: not running.server.backend_pids(), 20, lambda: "an earlier test's encoder drains")
    running.write(target="with vectors", more=ENCODER)
    running.post()
    pids = running.server.backend_pids()
    running.write(target="other", more=ENCODER)
    running.post()
    assert running.server.backend_pids() == pids and pids
    running.write(target="end")
    running.post()
    wait_until(lambda: not running.server.backend_pids(), 20, lambda: str(pids))


def test_only_operators_may_change_policies(
    start_server: StartServer, upstream: Upstream, tmp_path: Path
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f'models: {{one: {{upstream: {{base_url: "{upstream.base_url}"}}}}}}\n')
    server = start_server("--policies", str(path), api_key="sk-operator")
    url = server.root_url + "/admin/policies"
    headers = {"content-type": "application/json"}
    assert httpx.post(url, headers=headers).status_code == 401
    response = httpx.post(url, headers={**headers, **server.headers})
    assert response.status_code == 403 and "admin.principals" in response.json()["error"]["message"]
    assert httpx.get(url).status_code == 401
