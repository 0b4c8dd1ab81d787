from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from gateway.cli import version
from gateway.cli.main import main

ROOT = Path(__file__).resolve().parents[3]


def test_shows_the_version_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert metadata.version("penstock") == declared
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"penstock {declared}\n"


def test_says_what_to_do_where_penstock_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(version, "DISTRIBUTION", "penstock-that-is-not-there")
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 2
    assert "pip install" in capsys.readouterr().err
