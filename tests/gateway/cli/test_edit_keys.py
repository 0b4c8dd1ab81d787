"""`penstock keys new|list|revoke|rotate` over one file: what they print, keep and refuse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gateway.auth import KeyRing
from gateway.cli import edit_keys
from gateway.cli.main import main
from gateway.errors import Unauthorized
from gateway.keys_file import LiveKeys, read_keys

Run = Callable[..., list[str]]
KILLED_BEFORE_THE_RENAME = """
import os, signal, sys
os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
from gateway.cli.main import main
main(["keys", "new"])
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys.jsonl"
    monkeypatch.setenv("PENSTOCK_KEYS_FILE", str(path))
    return path


@pytest.fixture
def keys(path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> list[str]:
        """The words that it prints."""
        assert main(["keys", *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out.split()

    return run


def new(keys: Run, *arguments: str) -> tuple[str, str]:
    _, key, _, key_id = keys("new", *arguments)
    return key, key_id


def ring(path: Path, later_s: float = 0.0, **tenants: str) -> KeyRing:
    live = LiveKeys(read_keys(str(path)))
    return KeyRing((), tenants, live, clock=lambda: time.time() + later_s)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_good(path: Path, key: str, later_s: float = 0.0) -> bool:
    try:
        ring(path, later_s).identify(f"Bearer {key}")
    except Unauthorized:
        return False
    return True


def test_a_new_key_makes_the_file_and_is_not_in_it(path: Path, keys: Run) -> None:
    key, key_id = new(keys, "--tenant", "research", "--expires", "90d", "--note", "nightly évaluation")
    assert path.stat().st_mode & 0o777 == 0o600
    assert key not in path.read_text() and key not in " ".join(keys("list"))
    found = ring(path).identify(f"Bearer {key}")
    assert (found.tenant, f"key-{found.key_id}") == ("research", key_id)
    assert is_good(path, key, 89 * 86400) and not is_good(path, key, 91 * 86400)
    (record,) = records(path)
    assert record["note"] == "nightly évaluation" and record["id"] == key_id


def test_a_list_says_what_each_key_is(path: Path, keys: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [new(keys, *each)[1] for each in ((), ("--tenant", "t", "--note", "ci"), ("--expires", "9d"))]
    keys("revoke", ids[0])
    assert main(["keys", "list"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "TENANT", "STATE", "CREATED", "NOTE"]
    assert [line.split()[:3] for line in lines] == [
        [ids[0], "-", "revoked"],
        [ids[1], "t", "good"],
        [ids[2], "-", "until"],
    ]
    assert lines[1].endswith("ci")


def test_a_rotation_keeps_id_tenant_and_note_and_ends_the_old_key_after_the_grace(
    path: Path, keys: Run
) -> None:
    old, key_id = new(keys, "--note", "ci")
    _, fresh, _, same = keys("rotate", key_id, "--grace", "2h")
    assert same == key_id
    assert ring(path).identify(f"Bearer {old}") == ring(path).identify(f"Bearer {fresh}")
    assert ring(path, **{key_id: "named"}).identify(f"Bearer {fresh}").tenant == "named"
    assert is_good(path, old, 7100) and not is_good(path, old, 7300) and is_good(path, fresh, 1e9)
    assert [each["note"] for each in records(path)] == ["ci", "ci"]
    last = keys("rotate", key_id, "--grace", "0s")[1]
    assert [is_good(path, key) for key in (old, fresh, last)] == [False, False, True]


def test_a_grace_does_not_make_a_key_last_longer(path: Path, keys: Run) -> None:
    old, key_id = new(keys, "--expires", "1h")
    fresh = keys("rotate", key_id)[1]
    assert not is_good(path, old, 3700) and not is_good(path, fresh, 3700) and is_good(path, fresh, 3500)
    last = keys("rotate", key_id, "--expires", "9h")[1]
    assert is_good(path, last, 3700)


def test_a_revocation_ends_every_key_of_the_id_and_stays(path: Path, keys: Run) -> None:
    old, key_id = new(keys)
    fresh = keys("rotate", key_id)[1]
    assert keys("revoke", key_id) == keys("revoke", key_id) == ["revoked", key_id]
    assert not is_good(path, old) and not is_good(path, fresh)
    assert len(records(path)) == 2
    with pytest.raises(Unauthorized, match="revoked"):
        ring(path).identify(f"Bearer {fresh}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("new", "--tenant", "überall"), "--tenant 'überall' must be 1 to 64"),
        (("new", "--tenant", "a b"), "--tenant 'a b' must be"),
        (("new", "--note", "a\nb"), "--note 'a\\nb' must be"),
        (("new", "--note", "n" * 201), "200 printable"),
        (("new", "--expires", "soon"), "--expires 'soon' must be a duration such as 90d"),
        (("new", "--expires", "2027-01-31T10:00"), "a time with its zone"),
        (("new", "--expires", "2020-01-31"), "--expires '2020-01-31' is in the past"),
        (("new", "--expires", "0s"), "in the past"),
        (("new", "--expires", "2020-01-31T10:00:00+14:00"), "in the past"),
        (("new", "--expires", "999999d"), "100 years"),
        (("new", "--expires", "-5d"), "--expires"),
        (("revoke", "key-00000000"), "no key has the id 'key-00000000'"),
        (("revoke", "sk-canary"), "no key has the id that"),
        (("rotate", "key-00000000"), "no key has the id"),
        (("rotate", "key-00000000", "--grace", "1w"), "--grace '1w' must be a number and s, m, h or d"),
    ],
)
def test_bad_arguments_are_one_line_and_change_nothing(
    path: Path, keys: Run, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new(keys)
    before = path.read_bytes()
    try:
        assert main(["keys", *arguments]) == 2
    except SystemExit as ended:  # argparse has refused it
        assert ended.code == 2
    found = capsys.readouterr()
    assert said in found.err and found.out == "" and "canary" not in found.err
    assert path.read_bytes() == before


@pytest.mark.parametrize("end", ["revoke", "expiry"])
def test_a_key_that_has_ended_is_not_rotated(
    path: Path, keys: Run, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, key_id = new(keys)
    keys(*(("revoke", key_id) if end == "revoke" else ("rotate", key_id, "--grace", "0s")))
    if end == "expiry":
        path.write_text(path.read_text().splitlines()[0] + "\n")
    assert main(["keys", "rotate", key_id]) == 2
    assert f"{key_id} has ended: make another key" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("list",), ("revoke", "key-00000000"), ("rotate", "key-00000000")])
def test_without_a_file_there_is_nothing_to_change(
    path: Path,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["keys", *arguments]) == 2
    assert "does not exist: make it with `penstock keys new`" in capsys.readouterr().err
    assert not path.exists()
    monkeypatch.delenv("PENSTOCK_KEYS_FILE")
    for each in (arguments, ("new", "--tenant", "t")):
        assert main(["keys", *each]) == 2
        assert "set PENSTOCK_KEYS_FILE, or name one with --file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [("{", 0o600, "line 1: "), ("", 0o644, "chmod 600"), ("sk-canary", 0o600, "line 1: ")],
)
def test_a_broken_file_is_not_written_over(
    path: Path, text: str, mode: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(text)
    path.chmod(mode)
    assert main(["keys", "new"]) == 2
    found = capsys.readouterr()
    assert said in found.err and "canary" not in found.err and found.out == ""
    assert path.read_text() == text


def test_an_empty_file_gets_its_first_key(path: Path, keys: Run) -> None:
    path.touch(0o600)
    key, _ = new(keys)
    assert is_good(path, key)


def test_a_link_stays_one(tmp_path: Path, keys: Run) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/keys")
    for number in (1, 2):
        new(keys, "--file", str(tmp_path / "link"))
        assert (tmp_path / "link").is_symlink() and len(records(tmp_path / "real" / "keys")) == number


def test_a_folder_that_does_not_exist_or_is_full(
    tmp_path: Path, keys: Run, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", "--file", str(tmp_path / "none" / "keys")]) == 2
    assert "make the folder first" in capsys.readouterr().err
    new(keys)
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["keys", "new"]) == 2
    found = capsys.readouterr()
    assert "No space left on device" in found.err and found.out == ""
    assert path.read_bytes() == before


def test_many_at_once_lose_no_key(path: Path) -> None:
    out = [StringIO() for _ in range(20)]
    threads = [threading.Thread(target=edit_keys.add_key, args=(str(path), each)) for each in out]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(records(path)) == 20
    assert all(is_good(path, each.getvalue().split()[1]) for each in out)


def test_two_processes_at_once(path: Path) -> None:
    command = [sys.executable, "-m", "gateway.cli", "keys", "new"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    made = [each.communicate()[0].split()[1] for each in running]
    assert len(records(path)) == 2 and all(is_good(path, key) for key in made)


def test_one_that_waits_too_long_says_so(
    path: Path, keys: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(edit_keys, "LOCK_WAIT_S", 0.1)
    new(keys)
    with edit_keys._locked(str(path), str(path)):
        assert main(["keys", "new"]) == 2
    assert "is being changed by another `penstock keys`" in capsys.readouterr().err


def test_one_that_is_killed_leaves_the_file_as_it_was(path: Path, keys: Run) -> None:
    key, _ = new(keys)
    before = path.read_bytes()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_THE_RENAME], capture_output=True, check=False
    )
    assert killed.returncode == -9 and killed.stdout == b""
    assert path.read_bytes() == before and is_good(path, key)
    assert sorted(os.listdir(path.parent)) == [".keys.jsonl.new", "keys.jsonl", "keys.jsonl.lock"]
    other, _ = new(keys)
    assert is_good(path, key) and is_good(path, other)
    assert sorted(os.listdir(path.parent)) == ["keys.jsonl", "keys.jsonl.lock"]


def test_an_id_is_not_given_twice(path: Path, keys: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(["sk-a", "sk-a", "sk-b"])
    monkeypatch.setattr(edit_keys, "new_key", lambda: next(made))
    assert [new(keys)[0] for _ in range(2)] == ["sk-a", "sk-b"]
    assert len({each["id"] for each in records(path)}) == 2
    assert all(re.fullmatch(r"key-[0-9a-f]{8}", each["id"]) for each in records(path))
