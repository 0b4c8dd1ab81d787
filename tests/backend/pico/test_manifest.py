"""The manifest lists every file and detects every kind of change."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from backend.pico import manifest
from backend.pico.manifest import MAX_TOTAL_BYTES, describe, differences
from backend.pico.recipe import WEIGHTS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a" / "heads").mkdir(parents=True)
    (tmp_path / "a" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "a" / "heads" / "config.json").write_bytes(b"{}")
    monkeypatch.setattr(sys, "argv", ["manifest", "--weights", str(tmp_path)])
    assert manifest.main() == 0
    return tmp_path


def test_lists_every_file_but_itself(folder: Path) -> None:
    found = describe(folder)
    assert list(found["files"]) == ["a/heads/config.json", "a/model.safetensors"]
    digest = hashlib.sha256(b"weights").hexdigest()
    assert found["files"]["a/model.safetensors"] == {"bytes": 7, "sha256": digest}
    assert found["total_bytes"] == 9
    assert differences(folder) == []


def test_detects_changed_missing_and_new_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a" / "model.safetensors").write_bytes(b"other")
    (folder / "a" / "heads" / "config.json").unlink()
    (folder / "new").write_bytes(b"")
    monkeypatch.setattr(sys, "argv", ["manifest", "--weights", str(folder), "--check"])
    assert manifest.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a/heads/config.json is listed but missing"
    assert lines[1].startswith("a/model.safetensors has SHA-256")
    assert lines[2] == "new is not listed"


def test_the_family_is_small() -> None:
    assert describe(WEIGHTS)["total_bytes"] <= MAX_TOTAL_BYTES


def test_the_stored_manifest_is_that_of_the_files() -> None:
    assert differences(WEIGHTS) == [], "run `python -m backend.pico.manifest`"
