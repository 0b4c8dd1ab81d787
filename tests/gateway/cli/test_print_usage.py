"""`penstock usage` prints a table or CSV, and errors in one line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from gateway.accounting.usage_rows import SCHEMA, UsageRows
from gateway.cli.main import main
from gateway.database.sqlite import SqliteDatabase
from tests.gateway.accounting.receipts import NOW_S, receipt_with

ALL = ["--since", "2026-11-01", "--until", "2026-12-01"]


@pytest.fixture
async def folder(tmp_path: Path) -> str:
    rows = UsageRows(SqliteDatabase(str(tmp_path), "usage", SCHEMA), now_s=lambda: NOW_S)
    for fields in ({}, {}, {"model": "=large", "status": 500, "is_estimated": True}):
        rows.receive(receipt_with(**fields))
    await rows.close()
    return str(tmp_path)


def test_table(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--data-dir", folder, "--by", "model,user", *ALL]) == 0
    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:5] == ["model", "user", "requests", "errors", "input"]
    assert first[:4] == ["m", "-", "2", "0"] and "0.5000" in first
    assert second[:4] == ["=large", "-", "1", "1"] and second[-1] == "100%"


def test_csv(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "out.csv")
    asked = ["usage", "--data-dir", folder, "--by", "day,model", *ALL, "--csv"]
    assert main([*asked, file]) == 0 and main([*asked, "-"]) == 0
    written = Path(file).read_text()
    assert capsys.readouterr().out == written
    rows = list(csv.DictReader(io.StringIO(written)))
    assert [(row["day"], row["model"], row["requests"]) for row in rows] == [
        ("2026-11-25", "m", "2"),
        ("2026-11-25", "=large", "1"),
    ]
    assert main([*asked, str(tmp_path / "none" / "out.csv")]) == 2


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--by", "prompt"], "'by'"),
        (["--by", ""], "'by'"),
        (["--since", "x"], "'since'"),
        (["--until", "x"], "'until'"),
    ],
)
def test_bad_flags_are_named(
    folder: str, flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["usage", "--data-dir", folder, *flags]) == 2
    told = capsys.readouterr().err
    assert named in told and told.count("\n") == 1


def test_nothing_found(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["usage", "--data-dir", folder, "--since", "2026-01-01", "--until", "2026-01-02"]
    assert main(asked) == 0
    assert "no requests from 2026-01-01" in capsys.readouterr().out
    assert main(["usage", "--data-dir", str(tmp_path / "none")]) == 2
    assert "usage.sqlite" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_file_that_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "usage.sqlite").write_text("no database" * 1000)
    assert main(["usage", "--data-dir", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_no_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--url", "http://127.0.0.1:1"]) == 2
    assert "is the gateway up?" in capsys.readouterr().err
