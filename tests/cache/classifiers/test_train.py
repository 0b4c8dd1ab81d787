from __future__ import annotations

from random import Random

import numpy as np

from cache.classifiers.train import fit_head, own_turns


def test_a_head_learns_from_markers_and_vectors() -> None:
    random = np.random.default_rng(0)
    vectors = [row.astype(np.float32) for row in random.standard_normal((200, 4))]
    labels = [bool(vector[0] > 0) for vector in vectors]
    tensors = fit_head("freshness", [[0.0]] * 200, vectors, labels)
    scores = np.stack(vectors) @ tensors["freshness.vector"] + tensors["freshness.bias"]
    assert ((scores > 0) == np.array(labels)).mean() > 0.95


def test_own_turns_are_of_both_kinds() -> None:
    turns = own_turns(["What is a?", "What is b?", "c?", "d?"], [{"history": ["x"]}], Random(0))
    assert {turn["context_dependent"] for turn in turns} == {True, False}
    assert all(turn["history"] for turn in turns)
