"""Topics are measured once, into files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from backend.pico import results


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def topics(weights: Path, count: int) -> dict[str, object]:
        return {name: lambda name=name: names.append(name) or {"count": count} for name in ("small", "load")}

    monkeypatch.setattr(results, "topics", topics)
    return names


def test_measures_missing_topics_only(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["results", "--out", str(tmp_path / "new"), "--count", "3"])
    results.main()
    results.main()
    assert measured == ["small", "load"]
    assert json.loads((tmp_path / "new" / "load.json").read_text()) == {"count": 3}
    (tmp_path / "new" / "load.json").unlink()
    results.main()
    assert measured == ["small", "load", "load"]


def test_measures_what_is_asked_for(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["results", "--out", str(tmp_path), "--only", "load"])
    results.main()
    assert measured == ["load"]
