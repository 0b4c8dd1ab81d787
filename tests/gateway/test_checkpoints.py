"""`builtin:NAME` is a checkpoint that ships with Penstock; anything else is a path to a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from gateway import checkpoints
from gateway.checkpoints import checkpoint_folder


@pytest.fixture
def builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of weights with one checkpoint and something else."""
    for name in ("one", "adapters"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "config.json").write_text("{}")
    monkeypatch.setattr(checkpoints, "BUILTIN_FOLDER", tmp_path)
    return tmp_path


def test_builtin_and_path(builtin: Path) -> None:
    assert checkpoint_folder("builtin:one") == checkpoint_folder(str(builtin / "one")) == builtin / "one"


@pytest.mark.parametrize("name", ["two", "adapters", "../one", ""])
def test_no_such_builtin(builtin: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint 'builtin:.*known: one$"):
        checkpoint_folder(f"builtin:{name}")


def test_no_such_folder(builtin: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        checkpoint_folder(str(builtin / "one" / "config.json"))
