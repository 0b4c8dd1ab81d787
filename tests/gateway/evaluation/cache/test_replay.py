from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.evaluation.cache.replay import Array, Replay, best_within, finest


def by_cosine(number: int, candidates: Sequence[int], cosines: Array) -> Array:
    return cosines


def unit(*degrees: float) -> Array:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_identical_questions_hit_without_a_judgement() -> None:
    replay = Replay(["A b", " A b ", "c"], ["x", "x", "y"], unit(0, 0, 90))
    outcome = replay.run(1.1, by_cosine)
    assert (outcome.num_hits, outcome.num_false, outcome.num_semantic, outcome.num_exact_only) == (1, 0, 0, 1)


def test_right_and_false_semantic_hits_are_counted() -> None:
    replay = Replay(["a", "b", "c"], ["x", "x", "z"], unit(0, 5, 8))
    outcome = replay.run(0.9, by_cosine)
    assert (outcome.num_hits, outcome.num_false, outcome.num_semantic) == (2, 1, 2)
    assert outcome.false_share == 0.5
    low, high = outcome.false_interval
    assert 0 < low < 0.5 < high < 1


def test_a_question_that_was_served_is_not_stored() -> None:
    # b is served a's answer; c is near b only, so that nothing is stored near c.
    replay = Replay(["a", "b", "c", "b"], ["x", "x", "x", "x"], unit(0, 20, 40, 20))
    outcome = replay.run(np.cos(np.radians(25)), by_cosine)
    assert outcome.num_hits == 2  # both times b
    assert outcome.num_semantic == 2


def test_best_threshold_within_a_bound() -> None:
    replay = Replay(["a", "b", "c", "d"], ["x", "x", "z", "x"], unit(0, 5, 8.5, 1))
    outcomes = [replay.run(threshold, by_cosine) for threshold in (0.9, 0.9999)]
    best = best_within(outcomes, 0.01)
    assert best is not None and best.num_false == 0 and best.threshold == 0.9999
    finer = finest(replay, by_cosine, outcomes, 0.01)
    assert finer is not None and finer.num_hits == 2 and finer.num_false == 0
    assert best_within(outcomes[:1], 0.01) is None


def test_saved_tokens_are_those_of_hits() -> None:
    replay = Replay(["a", "a", "b", "c"], ["x", "x", "y", "z"], unit(0, 0, 5, 90), [10, 10, 40, 40])
    assert replay.run(1.1, by_cosine).saved_share == 0.1
    assert replay.run(0.9, by_cosine).saved_share == 0.5
