"""A file is replaced as a whole or left as it was; links and pipes stay what they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.evaluation.outputs import write_file


def test_replaced_through_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    for data in (b"1", b"2"):
        write_file(link, data)
        assert (link.is_symlink(), real.read_bytes()) == (True, data)
    assert set(tmp_path.iterdir()) == {real, link}


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    whole = Path.write_bytes

    def half(self: Path, data: bytes) -> int:
        whole(self, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space"):
        write_file(path, b"new and long")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(path, b"data")
        assert os.read(reader, 10) == b"data"
    finally:
        os.close(reader)
    assert path.is_fifo()
