from __future__ import annotations

from pathlib import Path

import numpy as np

from backend.classifiers.weights import write_weights
from cache.classifiers.linear import Head, load_head


def test_probabilities_never_overflow() -> None:
    head = Head(np.array([1e6], np.float32), np.zeros(2, np.float32), 0.0)
    vector = np.zeros(2, np.float32)
    assert head.probability([1], vector) > 0.999
    assert head.probability([-1], vector) < 0.001


def test_shipped_heads_fit_their_markers() -> None:
    from cache.classifiers import followup, timeliness

    assert len(load_head("freshness").markers) == len(timeliness.markers("a"))
    assert len(load_head("followup").markers) == len(followup.markers("a", ["b"]))


def test_weights_that_were_trained_again_are_loaded_again(tmp_path: Path) -> None:
    """A reload of the policies must not keep weights of an encoder that they no longer have."""
    path = tmp_path / "heads.safetensors"
    for size in (3, 5):
        tensors = {f"followup.{part}": np.ones(size, np.float32) for part in ("markers", "vector", "bias")}
        write_weights(path, tensors, {})
        assert len(load_head("followup", path).vector) == size
        assert load_head("followup", path) is load_head("followup", path)
