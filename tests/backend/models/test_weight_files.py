"""Finding the files with weights, and what is said where one of them is no such file."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.digests import revision_of
from backend.errors import CheckpointError
from backend.models.weight_files import weight_files

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (None, ["model.safetensors"]),
        ('{"weight_map": {"a": "2.safetensors", "b": "1.safetensors"}}', ["1.safetensors", "2.safetensors"]),
    ],
)
def test_which_files(tmp_path: Path, written: str | None, names: list[str]) -> None:
    for name in ("1.safetensors", "2.safetensors", "3.safetensors", "model.safetensors"):
        (tmp_path / name).touch()
    if written is not None:
        (tmp_path / INDEX).write_text(written)
    assert weight_files(tmp_path) == [tmp_path / name for name in names]


@pytest.mark.parametrize(
    "written",
    [
        *('{"weight_map": {"a": 1}}', '{"weight_map": {"a": null}}', '{"weight_map": {"a": ["b"]}}'),
        *('{"weight_map": null}', "null", "{}", "[" * 100_000),
    ],
    ids=range(7),
)
def test_a_broken_index(tmp_path: Path, written: str) -> None:
    (tmp_path / INDEX).write_text(written)
    with pytest.raises(CheckpointError, match=rf"{INDEX} is not a safetensors index .*; download it again"):
        weight_files(tmp_path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = revision_of(tmp_path)
    (tmp_path / "model.safetensors").mkdir()
    assert revision_of(tmp_path) == before  # what is asked first says nothing
    with pytest.raises(CheckpointError, match="model.safetensors is a folder, expected a file; download"):
        weight_files(tmp_path)
