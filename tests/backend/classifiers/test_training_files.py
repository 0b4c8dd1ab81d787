"""Training files that cannot be used end a command with one line, in every training command."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from backend.classifiers.training_files import RowsError, read_rows, run


def test_rows_plain_and_packed(tmp_path: Path) -> None:
    lines = '{"a": 1}\n\n{"a": "x\u2028y"}\n'.encode()
    (tmp_path / "plain").write_bytes(lines)
    (tmp_path / "packed").write_bytes(gzip.compress(lines))
    rows = read_rows(tmp_path / "plain")
    assert rows == read_rows(tmp_path / "packed") == [{"a": 1}, {"a": "x\u2028y"}]
    with pytest.raises(RowsError, match=r"plain:3: no column 'b'; it has a"):
        rows[1]["b"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "No such file"),
        (b"", "no rows"),
        (b"\xff\xfe", "neither UTF-8"),
        (gzip.compress(b'{"a": 1}')[:12], "neither UTF-8"),
        (b"\x1f\x8bnonsense of length", "gzip|Unknown|Not a"),
        (b'{"a": 1}\n{"a"', ":2: not JSON"),
        (b"[" * 100_000, ":1: not JSON"),
        (b"3\n", ":1: not an object"),
    ],
)
def test_broken_files(data: bytes | None, words: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "rows").write_bytes(data)
    with pytest.raises(RowsError, match=words):
        read_rows(tmp_path / "rows")


def test_a_command_without_its_files_says_so_in_a_line() -> None:
    command = [sys.executable, "-m", "guardrails.train.groundedness", "/nowhere"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "guardrails.train.groundedness: /nowhere: No such file or directory\n"


def test_every_training_command_ends_so() -> None:
    for package in ("cache", "router", "guardrails", "backend/pico"):
        for path in Path(package).rglob("*.py"):
            text = path.read_text("utf-8")
            assert '__name__ == "__main__"' not in text or text.endswith("run(main)\n"), path


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RowsError("f:3: no column 'a'"), 2, ": f:3: no column 'a'\n"),
        (FileNotFoundError(2, "No such file", "/x"), 2, ": /x: No such file\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_ends_of_a_command(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run(main)
    assert ended.value.code == code
    assert capsys.readouterr().err.endswith(words)
