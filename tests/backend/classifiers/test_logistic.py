from __future__ import annotations

import numpy as np

from backend.classifiers.logistic import fit


def test_fit_finds_the_separating_column() -> None:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((400, 3)).astype(np.float32)
    labels = (inputs[:, 1] + 0.5 > 0).astype(np.float32)
    found = fit(inputs, labels, np.full(3, 0.5, np.float32))
    assert found[1] > 5 * max(abs(found[0]), abs(found[2]))
    assert found[3] > 0
