"""A full disk, a cleaner of temporary folders or a long path stops nothing: killed processes come back."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import SMALL_ENGINE, START_TIMEOUT_S, Server, command_line, descendants, wait_until
from tests.e2e.test_openai_sdk import ask

ENCODER = """
models:
  sentences: {encoder: {checkpoint: "builtin:all-minilm-l6-v2", dtype: int8}}
"""
POLICY = f"{ENCODER}  {MODEL}: {SMALL_ENGINE}\n"
OURS = (b"gateway.wiring.worker", b"backend.server.engine_process", b"backend.server.encoder_process")


def check_answers(server: Server) -> None:
    asked: dict[str, dict[str, object]] = {"/embeddings": {"model": "sentences", "input": "hello"}}
    if server.engine_pids():
        chat = {"model": MODEL, "messages": ask("What is 2 + 2?"), "max_tokens": 4}
        asked["/chat/completions"] = chat
    for path, body in asked.items():
        answer = httpx.post(server.base_url + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text


def children(server: Server) -> set[int]:
    return {p for p in descendants(server.process.pid) if any(each in command_line(p) for each in OURS)}


def kill_all_children(server: Server, num_engines: int = 1) -> None:
    """Kill every engine, encoder and worker; AssertionError unless all of them come back and serve."""
    before = children(server)
    assert len(before) == 3 + num_engines, "two workers, an encoder and engines"
    for pid in before:
        os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        assert server.process.poll() is None, f"penstock serve ended:\n{server.log}"
        now = children(server)
        return len(now) == len(before) and not now & before and server.is_ready()

    wait_until(is_back, START_TIMEOUT_S, lambda: f"not all are back: {server.log}")
    for _ in range(4):  # each a new connection, so that both workers get some
        check_answers(server)
    page = httpx.get(server.root_url + "/metrics", timeout=5)
    assert page.status_code == 200


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """Two workers, an engine and an encoder."""
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "models.yaml").write_text(POLICY)
    return ["--workers", "2", "--policies", str(folder)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; where mounting is not allowed the test with RLIMIT_FSIZE stands alone."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Use up the space of a small file system to the last byte."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            return


# A full file system refuses less than the limit of the next test, which needs no root.
@pytest.mark.slow
def test_a_file_system_that_becomes_full(
    start_server: StartServer, flags: list[str], small_disk: Path
) -> None:
    server = start_server(*flags, environment={"TMPDIR": str(small_disk)})
    fill(small_disk)
    kill_all_children(server)
    assert server.terminate() == 0
    assert not list(small_disk.glob("*penstock*"))


def test_not_one_byte_can_be_written_to_any_file(start_server: StartServer, flags: list[str]) -> None:
    """A file size limit of 0 is a full disk for every file, log included; nothing can be made in /proc."""
    server = start_server(*flags, environment={"TMPDIR": "/proc"})
    hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, hard))  # children inherit it
    kill_all_children(server)
    assert server.terminate() == 0


def test_a_long_path_and_a_cleaner_of_temporary_folders(
    start_server: StartServer, flags: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / ("long" * 40)  # a Unix socket's path may have 107 bytes
    folder.mkdir()
    Path(flags[-1], "models.yaml").write_text(ENCODER)  # an engine's socket is bound as an encoder's is
    server = start_server(*flags, environment={"TMPDIR": str(folder)})
    shutil.rmtree(folder)
    kill_all_children(server, num_engines=0)
    assert server.terminate() == 0
