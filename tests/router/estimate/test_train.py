from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from router.estimate.estimate import Estimate
from router.estimate.train import (
    Features,
    Outcome,
    OutcomeError,
    fit,
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


def gains() -> NDArray[np.float32]:
    return gains_of(outcomes(), "small", "large")


def test_words_tell_what_needs_the_strong_model(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(path, fit(Features.of(outcomes(), None), gains()), {"note": "test"})
    estimate = Estimate(path)
    assert not estimate.needs_vector
    assert estimate.predict("What is 8 + 3?").gain < 0.2
    assert estimate.predict("Prove theorem 77 of the book.").gain > 0.8
    far = estimate.predict("Женщина идёт домой вечером по длинной улице")
    assert far.familiarity < 0.01
    assert far.gain == pytest.approx(estimate.mean_gain, abs=0.02)


def test_meaning_and_words_are_averaged(tmp_path: Path) -> None:
    easy, hard = np.eye(16, dtype=np.float32)[:2]
    vectors = {each.prompt: hard if each.prompt.startswith("Prove") else easy for each in outcomes()[:-20]}
    path = tmp_path / "x.safetensors"
    save(path, fit(Features.of(outcomes(), vectors), gains()), {})
    estimate = Estimate(path)
    assert estimate.needs_vector
    sum_, proof = "What is 8 + 3?", "Prove theorem 77 of the book."
    assert estimate.predict(sum_, easy).gain < 0.1 and estimate.predict(proof, hard).gain > 0.9
    alone = [estimate.predict(text).gain for text in (sum_, proof)]  # the encoder does not answer
    assert alone[0] < 0.3 and alone[1] > 0.7
    assert alone[0] < estimate.predict(sum_, hard).gain < alone[1]


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
    plain.write_text('{"prompt": "x", "needs_reasoning": true}\n', "utf-8")
    assert read_outcomes([plain])[0].scores == {"plain": 0.0, "reasoning": 1.0}
    with pytest.raises(OutcomeError, match="cannot be read"):
        read_outcomes([tmp_path / "missing"])
    with pytest.raises(OutcomeError, match="2 of 2 outcomes lack a score of 'm' or 'z'"):
        gains_of(found, "m", "z")


def test_labels_of_ones_own_outweigh_other_data(tmp_path: Path) -> None:
    """Elsewhere east is easy; here it is hard."""
    east, north = np.eye(16, dtype=np.float32)[:2]
    elsewhere = [Outcome(f"question {n} about it", {"a": n % 2, "b": 1.0}, {}) for n in range(200)]
    here = [Outcome(f"request {n} for that", {"a": 1 - n % 2, "b": 1.0}, {}) for n in range(40)]
    vectors: dict[str, NDArray[np.float32]] = {}
    for group in (elsewhere, here):
        vectors |= {each.prompt: east if number % 2 else north for number, each in enumerate(group)}
    everything = elsewhere + here
    features, gains = Features.of(everything, vectors), gains_of(everything, "a", "b")
    own = np.arange(len(elsewhere), len(everything))
    found = []
    for number, numbers in enumerate((None, own)):
        path = tmp_path / f"{number}.safetensors"
        save(path, fit(features, gains, own=numbers), {})
        estimate = Estimate(path)
        found.append([estimate.predict("request for that", vector).gain for vector in (east, north)])
    assert found[0][0] < found[0][1]
    assert found[1][0] > found[0][0] and found[1][1] < found[0][1]


def test_an_estimate_tells_how_often_an_answer_is_kept_and_how_long_it_is(tmp_path: Path) -> None:
    path, rows = tmp_path / "x.safetensors", outcomes()
    kept = np.array([each.scores["small"] for each in rows], np.float32)
    tokens = np.array([[2.0, 10.0]] * len(rows), np.float32)
    save(path, fit(Features.of(rows, None), gains(), kept, tokens), {})
    estimate = Estimate(path)
    assert estimate.answer_tokens == [2.0, 10.0]
    assert estimate.predict("What is 8 + 3?").stays > 0.8
    assert estimate.predict("Prove theorem 77 of the book.").stays < 0.2
    far = estimate.predict("Женщина идёт домой вечером по длинной улице")
    assert far.stays == pytest.approx(float(kept.mean()), abs=0.02)
