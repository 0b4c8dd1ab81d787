"""The file of rounded weights: whole or not there, and never trusted when damaged."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from backend.quant.kept import KeptWeights, RoundedWeights

WEIGHTS = RoundedWeights(
    {
        "a": torch.arange(6, dtype=torch.int8).view(2, 3),
        "b": torch.ones(2, 1),
        "c": torch.ones(3, 3).to(torch.float8_e4m3fn),
    },
    [0.5, 0.25],
)


def read(folder: Path, revision: str = "r") -> RoundedWeights | None:
    kept = KeptWeights(str(folder), revision)
    with kept.locked():
        return kept.read()


def write(folder: Path | str, weights: RoundedWeights = WEIGHTS) -> None:
    kept = KeptWeights(str(folder), "r")
    with kept.locked():
        kept.write(weights)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read(tmp_path / "new") is None
    write(tmp_path / "new")
    found = read(tmp_path / "new")
    assert found is not None and found.errors == WEIGHTS.errors
    for name, tensor in WEIGHTS.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name].float(), tensor.float())
    assert read(tmp_path / "new", "other") is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "zeros"])
def test_a_damaged_file_is_not_used(tmp_path: Path, damage: str) -> None:
    write(tmp_path)
    path = tmp_path / "r.safetensors"
    content = path.read_bytes()
    damaged = {
        "cut": content[:-3],
        "flipped": content[:-1] + bytes([content[-1] ^ 1]),
        "empty": b"",
        "foreign": b"\x02\0\0\0\0\0\0\0{}",
        "zeros": bytes(len(content)),
    }
    path.write_bytes(damaged[damage])
    assert read(tmp_path) is None
    write(tmp_path)
    assert read(tmp_path) is not None


def test_a_part_that_a_killed_process_left_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "r.part").write_bytes(b"half")
    assert read(tmp_path) is None
    write(tmp_path)
    assert read(tmp_path) is not None
    assert not (tmp_path / "r.part").exists()


def test_a_folder_that_cannot_be_written_keeps_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    write(tmp_path / "file" / "folder")
    assert "cannot be kept" in caplog.text
    caplog.clear()
    (tmp_path / "r.safetensors").mkdir()  # in place of the file
    write(tmp_path)
    assert "cannot be kept" in caplog.text
    assert read(tmp_path) is None
    assert not (tmp_path / "r.part").exists()


def test_a_folder_that_is_only_read_gives_what_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights rounded elsewhere are mounted read-only: their lock cannot be had and is not needed."""
    write(tmp_path)
    (tmp_path / "r.lock").unlink(missing_ok=True)
    (tmp_path / "r.lock").mkdir()
    assert read(tmp_path) is not None
    assert caplog.text == ""
    write(tmp_path)
    assert "cannot be kept" in caplog.text


def test_a_part_that_cannot_be_removed_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r.part").mkdir()
    write(tmp_path)
    assert "cannot be kept" in caplog.text


def test_nothing_is_kept_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("")
    assert list(tmp_path.iterdir()) == []


def test_one_computes_while_others_wait(tmp_path: Path) -> None:
    computed, started = [], threading.Barrier(4)

    def serve() -> None:
        kept = KeptWeights(str(tmp_path), "r")
        started.wait()
        with kept.locked():
            if kept.read() is None:
                computed.append(1)
                kept.write(WEIGHTS)

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert computed == [1]


def test_the_files_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.quant.kept.MOST_KEPT", 2)
    for second, revision in enumerate("abc"):
        kept = KeptWeights(str(tmp_path), revision)
        with kept.locked():
            kept.write(WEIGHTS)
        os.utime(tmp_path / f"{revision}.safetensors", (second, second))
        if revision == "b":
            assert read(tmp_path, "a") is not None  # it is used, so "b" is the older one
    assert sorted(path.stem for path in tmp_path.glob("*.safetensors")) == ["a", "c"]
