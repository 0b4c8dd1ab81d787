from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from router.estimate.estimate import Estimate
from router.estimate.train import (
    Outcome,
    OutcomeError,
    fit_clusters,
    fit_words,
    gains_of,
    order_by_score,
    read_outcomes,
    save,
)


def outcomes() -> list[Outcome]:
    """Sums are easy; proofs need the strong model."""
    found = []
    for number in range(60):
        found.append(Outcome(f"What is {number} + {number % 7}?", {"small": 1.0, "large": 1.0}, {}))
        found.append(Outcome(f"Prove theorem {number} of the book.", {"small": 0.0, "large": 1.0}, {}))
    return found


def test_words_tell_what_needs_the_strong_model(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(path, fit_words(outcomes(), gains_of(outcomes(), "small", "large")), {"note": "test"})
    estimate = Estimate(path)
    assert not estimate.needs_vector
    assert estimate.predict("What is 8 + 3?").gain < 0.2
    assert estimate.predict("Prove theorem 77 of the book.").gain > 0.8
    far = estimate.predict("Женщина идёт домой вечером по длинной улице")
    assert far.familiarity < 0.01
    assert far.gain == pytest.approx(estimate.mean_gain, abs=0.02)


def test_clusters_tell_it_too_and_abstain_far_away(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    near = np.zeros((200, 16), np.float32)
    near[::2, 0], near[1::2, 1] = 1, 1
    near += 0.05 * draw.standard_normal(near.shape).astype(np.float32)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    gains = np.tile(np.array([0.0, 1.0], np.float32), 100)
    path = tmp_path / "x.safetensors"
    save(path, fit_clusters(near, gains), {})
    estimate = Estimate(path)
    assert estimate.needs_vector
    assert estimate.predict("", near[0]).gain < 0.2 < 0.8 < estimate.predict("", near[1]).gain
    far = np.zeros(16, np.float32)
    far[9] = 1
    assert estimate.predict("", far).gain == pytest.approx(0.5, abs=0.05)
    assert estimate.predict("", None).familiarity == 0


def test_files_of_outcomes_are_read_and_their_errors_named(tmp_path: Path) -> None:
    row = {"prompt": "a\u2028b", "scores": {"m": 1, "n": 0.5}, "cost_usd": {"m": None}, "task": "t"}
    plain, packed, broken = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz", tmp_path / "c.jsonl"
    plain.write_text(json.dumps(row, ensure_ascii=False) + "\n\n", "utf-8")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found = read_outcomes([plain, packed])
    assert [each.prompt for each in found] == ["a\u2028b"] * 2
    assert order_by_score(found) == ["n", "m"]
    broken.write_text('{"prompt": "x"}\n', "utf-8")
    with pytest.raises(OutcomeError, match=r"c\.jsonl:1: not an outcome"):
        read_outcomes([broken])
    with pytest.raises(OutcomeError, match="cannot be read"):
        read_outcomes([tmp_path / "missing"])
    with pytest.raises(OutcomeError, match="2 of 2 outcomes lack a score of 'm' or 'z'"):
        gains_of(found, "m", "z")
