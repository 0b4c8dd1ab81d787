from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backend.classifiers.weights import (
    WeightsError,
    read_card,
    read_weights,
    replace_tensors,
    write_weights,
)


def test_written_weights_are_read_with_their_digest(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_weights(path, {"x": np.arange(3, dtype=np.float16)}, {"note": 1})
    tensors, digest = read_weights(path)
    assert tensors["x"].tolist() == [0, 1, 2]
    assert len(digest) == 64


def test_tensors_are_replaced_with_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_weights(path, {"x": np.zeros(2), "y": np.ones(2)}, {"note": 1})
    replace_tensors(path, {"y": np.full(3, 2.0)})
    assert {name: each.tolist() for name, each in read_weights(path)[0].items()} == {
        "x": [0, 0],
        "y": [2, 2, 2],
    }
    assert '"note": 1' in path.with_suffix(".json").read_text()


def test_changed_missing_or_broken_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(WeightsError, match="install the package again"):
        read_weights(path)
    write_weights(path, {"x": np.zeros(3, np.float16)}, {})
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(WeightsError, match="SHA-256"):
        read_weights(path)


def test_a_card_names_the_encoder(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    encoder = {"name": "e", "sha256": "0", "languages": ["de"]}
    write_weights(path, {"a": np.ones(2, np.float32)}, {"seed": 1, "encoder": encoder})
    tensors, digest = read_weights(path)
    card = read_card(path)
    assert (card["seed"], card["sha256"], card["encoder"]["languages"]) == (1, digest, ["de"])
    assert tensors["a"].tolist() == [1, 1]
    path.with_suffix(".json").write_text("[]")
    with pytest.raises(WeightsError, match="no card of weights"):
        read_card(path)
    path.with_suffix(".json").unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        read_card(path)
