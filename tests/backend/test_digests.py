"""Digests of weights: one flipped bit is found, and the error says what to do."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from backend.config import EngineConfig
from backend.digests import check_digests, revision_of
from backend.errors import CheckpointError
from backend.models.loaded import load_model
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(next(each for each in VARIANTS if each.name == "qwen2"), folder, max_shard_size="100KB")
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


def load(folder: Path, sha256: dict[str, str]) -> None:
    load_model(EngineConfig(model="m", checkpoint=str(folder), device="cpu", sha256=sha256))


def test_a_flipped_bit_is_refused_at_load(checkpoint: Path) -> None:
    pinned = digests(checkpoint)
    assert len(pinned) > 1
    load(checkpoint, pinned)
    path = Path(max(pinned))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        with pytest.raises(CheckpointError, match=rf"{path} has SHA-256 {found}, but {pinned[str(path)]}"):
            load(checkpoint, pinned)
        load(checkpoint, {})
    finally:
        path.write_bytes(content)


def test_all_weights_must_be_listed_once_one_file_of_the_checkpoint_is(checkpoint: Path) -> None:
    pinned = digests(checkpoint)
    left_out = pinned.popitem()[0]
    with pytest.raises(CheckpointError, match=f"{left_out} is not listed"):
        load(checkpoint, pinned)


def test_files_elsewhere_need_no_digests_of_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    load(checkpoint, {str(tmp_path / "a"): hashlib.sha256(b"a").hexdigest()})


def test_a_listed_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read .No such file"):
        check_digests({str(tmp_path / "none.safetensors"): "0" * 64})


def test_revision_changes_with_a_weight(checkpoint: Path, tmp_path: Path) -> None:
    for path in checkpoint.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert revision_of(tmp_path) == revision_of(checkpoint)
    weights = max(tmp_path.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    assert revision_of(tmp_path) != revision_of(checkpoint)
