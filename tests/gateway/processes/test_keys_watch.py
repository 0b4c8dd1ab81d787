"""Changes of the keys file, whole and broken, as editors, secrets in Kubernetes and crashes make them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import pytest

from gateway.keys_file import KeysFileError
from gateway.processes import keys_watch
from gateway.processes.keys_watch import KeysWatch

LIMIT_S = 10.0


def line(key: str) -> str:
    return f'{{"sha256": "{sha256(key.encode()).hexdigest()}"}}\n'


def replace(path: Path, *keys: str, text: str | None = None, mode: int = 0o600) -> None:
    new = path.with_name("new")
    new.write_text("".join(map(line, keys)) if text is None else text)
    new.chmod(mode)
    new.replace(path)


class Watched:
    def __init__(self, path: Path) -> None:
        self.num_faults = 0
        self.watch = KeysWatch(str(path), self.count)

    def count(self) -> None:
        self.num_faults += 1

    def has(self, *keys: str) -> bool:
        return set(self.watch.live.current.by_digest) == {sha256(key.encode()).digest() for key in keys}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    replace(path, "sk-1")
    return path


@pytest.fixture
def watched(path: Path) -> Iterator[Watched]:
    found = Watched(path)
    yield found
    found.watch.close()


def until(holds: Callable[[], bool]) -> float:
    """The seconds until it holds."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < LIMIT_S
        time.sleep(0.005)
    return time.monotonic() - began_s


def test_a_replaced_and_an_edited_file_are_read(path: Path, watched: Watched) -> None:
    replace(path, "sk-1", "sk-2")
    until(lambda: watched.has("sk-1", "sk-2"))
    path.write_text(line("sk-3"))
    until(lambda: watched.has("sk-3"))
    with path.open("a") as opened:
        opened.write(line("sk-4"))
    until(lambda: watched.has("sk-3", "sk-4"))
    assert watched.num_faults == 0


def test_a_file_of_the_same_size_and_time_is_noticed(path: Path, watched: Watched) -> None:
    before = path.stat()
    path.write_text(line("sk-2"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    until(lambda: watched.has("sk-2"))


@pytest.mark.parametrize("broken", ["", "{", line("sk-2")[:50], line("sk-1") * 2, "sk-canary\n"])
def test_a_broken_file_leaves_the_keys_in_force(
    path: Path, watched: Watched, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        replace(path, text=broken)
        until(lambda: watched.watch.fault != "")
        assert watched.has("sk-1") and watched.num_faults == 1
        replace(path, "sk-2")
        until(lambda: watched.has("sk-2"))
    assert watched.watch.fault == "" and watched.num_faults == 1
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1
    assert "canary" not in caplog.text


def test_a_file_that_is_gone_or_readable_for_others(path: Path, watched: Watched) -> None:
    path.unlink()
    until(lambda: "does not exist" in watched.watch.fault)
    replace(path, "sk-2", mode=0o644)
    until(lambda: "chmod 600" in watched.watch.fault)
    assert watched.has("sk-1") and watched.num_faults == 2
    path.chmod(0o600)
    until(lambda: watched.has("sk-2"))
    assert watched.watch.fault == ""


def test_a_file_is_not_used_while_it_is_being_written(path: Path) -> None:
    found = Watched(path)
    found.watch.close()  # the polls are ours
    now_s = 0.0
    for number in range(20):  # each state could be read, and is a part of the whole
        path.write_text("".join(line(f"sk-{each}") for each in range(number + 1)))
        found.watch.poll(now_s := now_s + 1)
        assert found.has("sk-1")
    found.watch.poll(now_s + 1)
    assert found.has(*(f"sk-{each}" for each in range(20)))


def test_a_file_that_is_replaced_all_the_time_is_read(path: Path) -> None:
    found = Watched(path)
    found.watch.close()
    for number in range(8):
        replace(path, "sk-1", f"sk-new-{number}")
        found.watch.poll(number * 0.2)
    assert len(found.watch.live.current.by_digest) == 2


def test_the_links_of_a_mounted_kubernetes_secret(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        replace(tmp_path / f"..{number}" / "keys", f"sk-{number}")
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "keys.jsonl"
    path.symlink_to("..data/keys")
    found = Watched(path)
    assert found.has("sk-1")
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    until(lambda: found.has("sk-2"))
    found.watch.close()
    assert found.num_faults == 0


def test_a_hundred_changes_under_load_lose_no_key(path: Path, watched: Watched) -> None:
    keep, ended, lost = sha256(b"sk-1").digest(), threading.Event(), 0

    def ask() -> None:
        nonlocal lost
        while not ended.is_set():
            lost += keep not in watched.watch.live.current.by_digest

    asking = threading.Thread(target=ask)
    asking.start()
    for number in range(100):
        replace(path, "sk-1", f"sk-{number}")
        time.sleep(0.01)  # so that some states are read
    until(lambda: watched.has("sk-1", "sk-99"))
    ended.set()
    asking.join()
    assert lost == 0 and watched.num_faults == 0


def test_the_first_file_must_be_good(path: Path) -> None:
    replace(path, text="")
    with pytest.raises(KeysFileError, match="holds no key"):
        KeysWatch(str(path), lambda: None)
    path.unlink()
    with pytest.raises(KeysFileError, match="does not exist"):
        KeysWatch(str(path), lambda: None)


def test_one_of_several_workers_writes_to_the_log(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quiet = KeysWatch(str(path), lambda: None, is_logging=False)
    replace(path, text="")
    until(lambda: quiet.fault != "")
    quiet.close()
    assert not caplog.records


def test_a_worker_that_starts_while_the_file_is_broken_has_the_last_good_keys(path: Path) -> None:
    replace(path, text="")
    num_faults = []
    found = KeysWatch(str(path), lambda: num_faults.append(1), last_good=line("sk-1"))
    assert sha256(b"sk-1").digest() in found.live.current.by_digest
    assert "holds no key" in found.fault and len(num_faults) == 1
    replace(path, "sk-2")
    until(lambda: found.fault == "" and sha256(b"sk-2").digest() in found.live.current.by_digest)
    found.close()


def test_a_file_that_could_not_be_opened_for_a_while_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Watched(path)
    found.watch.close()
    replace(path, "sk-2")

    def refuse(path: str) -> NoReturn:
        raise KeysFileError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(keys_watch, "read_keys", refuse)
        for tenths in range(40):
            found.watch.poll(tenths / 10)
    assert found.has("sk-1") and found.num_faults == 1
    found.watch.poll(10.0)
    assert found.has("sk-2") and found.watch.fault == ""
