from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backend.encoder.corpus import Array, embed, vectors_by_text


def test_vectors_do_not_depend_on_the_other_texts() -> None:
    texts = ["What is the capital of France?", "hello", "hello", "a longer text " * 8]
    vectors = embed(texts)
    np.testing.assert_allclose(vectors, np.concatenate([embed([text]) for text in texts]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_vectors_are_embedded_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def embed(texts: Sequence[str]) -> Array:
        asked.extend(texts)
        return np.array([[len(text)] for text in texts], np.float32)

    vectors_by_text(["a", "bb", "a"], tmp_path, embed)
    vectors = vectors_by_text(["bb", "ccc"], tmp_path, embed)
    assert asked == ["a", "bb", "ccc"]
    assert {text: float(vector[0]) for text, vector in vectors.items()} == {"a": 1, "bb": 2, "ccc": 3}
