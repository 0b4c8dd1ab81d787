from __future__ import annotations

from pathlib import Path

import numpy as np

from guardrails.train.vectors import vectors_of


def test_known_texts_are_not_embedded_again(tmp_path: Path) -> None:
    first, rows = vectors_of(["one", "two", "one"], tmp_path)
    assert len(first) == 2 and rows[0] == rows[2] != rows[1]
    second, again = vectors_of(["two", "three"], tmp_path)
    assert len(second) == 3
    assert np.array_equal(second[again[0]], first[rows[1]])
