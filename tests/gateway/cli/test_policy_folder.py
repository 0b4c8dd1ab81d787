"""The policy folder is the last argument; the earlier spelling goes on and names the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.main import main, parse
from gateway.cli.policy_folder import given_folder

POLICIES = """
models: {far: {upstream: {base_url: 'http://127.0.0.1:9/v1'}}}
routes: {auto: {model: far}}
"""
BODY = '{"messages": [{"role": "user", "content": "hello"}]}'
COMMANDS = (
    ["explain", "-d", BODY],
    ["replay", "--log", "LOG"],
    ["policy", "show"],
    ["models", "list"],
    ["models", "show", "far"],
)
OTHERS = (
    ["models", "promote", "far"],
    ["models", "rollback", "far"],
    ["cache", "explain", "a", "b", "--json"],
    ["guardrails", "try", "hello", "--segment", "tool"],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICIES)
    (tmp_path / "log").write_text("")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_both_spellings_do_the_same(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(folder / "log") if word == "LOG" else word for word in command]
    assert main([*words, str(folder)]) == 0
    new = capsys.readouterr()
    assert main([*words, "--policies", str(folder)]) == 0
    old = capsys.readouterr()
    assert (new.err, new.out) == ("", old.out) and new.out
    assert old.err.count("\n") == 1 and old.err.endswith(f" {folder}`\n") and "write `penstock" in old.err


@pytest.mark.parametrize("command", [*COMMANDS, *OTHERS], ids=" ".join)
def test_the_folder_may_stand_before_or_behind_the_flags(command: list[str]) -> None:
    first_flag = next((at for at, word in enumerate(command) if word.startswith("-")), len(command))
    for words in ([*command, "DIR"], [*command[:first_flag], "DIR", *command[first_flag:]]):
        assert given_folder(parse(words), "") == Path("DIR")


def test_two_folders_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "-d", "{}", "A", "--policies", "B"]) == 2
    assert "given twice: leave out --policies 'B'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["explain", "-d", "{}", "A", "B"])
    assert "unrecognized arguments: B" in capsys.readouterr().err


def test_replay_needs_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay"]) == 2
    assert "name the policy folder: `penstock replay DIR`" in capsys.readouterr().err
