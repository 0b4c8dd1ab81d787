"""The shipped head puts questions into domains; training learns what it is shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backend.encoder.checkpoint import BUILTIN
from backend.encoder.model import SentenceEncoder
from policies.variables import DOMAINS
from router.signals.domain import domain_of, fit_domains, read_domains

ASKED = {
    "code": "Why does my for loop never end in JavaScript?",
    "everyday": "wake me up at half past six",
    "humanities": "Why did the Byzantine Empire decline?",
    "maths": "Factor the polynomial x^2 - 5x + 6.",
    "medicine": "What helps against a sore throat and a cough?",
    "science": "Why does ice float on water?",
}


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder.from_checkpoint(BUILTIN, 1, is_int8=True)


@pytest.mark.parametrize("domain", ASKED)
def test_domains(encoder: SentenceEncoder, domain: str) -> None:
    vector = encoder.embed(encoder.tokenize([ASKED[domain]]))[0]
    assert domain_of(vector) == domain


def test_conditions_know_the_same_domains() -> None:
    names, tasks, sentences = read_domains()
    assert names == list(DOMAINS) and set(tasks.values()) == set(names)
    assert {domain for _, domain in sentences} == set(names)


def test_nothing_is_like_no_domain() -> None:
    assert domain_of(np.zeros(384, np.float32)) == ""


def test_training_learns_what_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.eye(384, dtype=np.float32)[:9]
    found = fit_domains(np.repeat(vectors, 20, 0), np.repeat(DOMAINS, 20).tolist(), vectors, DOMAINS)
    scores = np.concatenate([vectors, np.ones((9, 1))], axis=1) @ found["domains.weight"]
    assert scores.argmax(1).tolist() == list(range(9))
