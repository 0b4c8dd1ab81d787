"""Sockets for engines that outlive their folder, at any length of path, and only for this user."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from gateway.processes import sockets
from gateway.processes.sockets import BackendSockets
from gateway.settings import SettingsError


def talk(made: BackendSockets, name: str) -> bytes:
    """What a client says to the process that listens."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(made.by_name[name].path)
        with made.by_name[name].listener.accept()[0] as server:
            client.sendall(name.encode())
            return server.recv(100)


@pytest.fixture
def long_folder(tmp_path: Path) -> Path:
    folder = tmp_path / ("long" * 40)  # a socket's path may have 107 bytes
    folder.mkdir()
    return folder


def test_nothing_is_left_on_the_disk_and_nothing_on_it_is_needed(long_folder: Path) -> None:
    made = BackendSockets(["one", "other"], [long_folder])
    assert list(long_folder.iterdir()) == []
    long_folder.rmdir()
    assert talk(made, "one") == b"one" and talk(made, "other") == b"other"
    assert len(made.fds) == 2
    for each in made.by_name.values():
        mode = os.stat(each.path).st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    fds = made.fds
    made.close()
    assert not any(Path(f"/proc/self/fd/{fd}").exists() for fd in fds)


def test_the_next_folder_is_tried(tmp_path: Path, long_folder: Path) -> None:
    made = BackendSockets(["one"], [tmp_path / "missing", Path("/proc"), long_folder])
    assert talk(made, "one") == b"one"
    made.close()


def test_no_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Unix sockets .*missing: No such file.*: set TMPDIR") as caught:
        BackendSockets(["one"], [tmp_path / "missing", Path("/proc")])
    assert "\n" not in str(caught.value)


def test_upstreams_alone_need_no_folder(tmp_path: Path) -> None:
    BackendSockets([], [tmp_path / "missing"]).close()


def test_without_proc_the_folder_stays_until_close(
    tmp_path: Path, long_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_has_proc", lambda: False)
    short = tmp_path / "s"
    short.mkdir()
    made = BackendSockets(["one"], [long_folder, short])
    assert talk(made, "one") == b"one" and not made.fds
    (folder,) = short.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]
    made.close()
    assert not folder.exists() and list(long_folder.iterdir()) == []


def test_two_servers_do_not_meet(tmp_path: Path) -> None:
    first, second = BackendSockets(["one"], [tmp_path]), BackendSockets(["one"], [tmp_path])
    assert talk(first, "one") == b"one"
    first.close()
    assert talk(second, "one") == b"one"
    second.close()
    shutil.rmtree(tmp_path)
