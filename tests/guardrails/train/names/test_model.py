from __future__ import annotations

import numpy as np
import pytest
import torch

from guardrails.checks.personal_data.names import CAUTION, TAGS, NameModel
from guardrails.checks.personal_data.words import digest_of
from guardrails.train.names import model
from guardrails.train.names.model import Batch, Tagger, fit, tensors_of
from guardrails.train.names.rows import Row, sentences_of

TEXTS = ("Hello, I am Bob.", "i am bob", "We met Eve in 1999, near 12 Oak Street; x=[1]!", "Bob\nBob")


def new_tagger() -> Tagger:
    torch.manual_seed(0)
    known = [digest_of(word) for word in ("bob", "eve", "street")]
    return Tagger(known, np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)).eval()


def test_numpy_computes_what_pytorch_does() -> None:
    tagger = new_tagger()
    sentences = list(sentences_of(Row(text, [], "x") for text in TEXTS))
    numpy_model = NameModel(tensors_of(tagger))
    with torch.inference_mode():
        batch = tagger(Batch(sentences, tagger.rows)).numpy()
    for sentence, expected in zip(sentences, batch, strict=True):
        scores = numpy_model.scores(sentence.words)
        scores[:, 0] -= CAUTION
        assert scores == pytest.approx(expected[: len(sentence.words)], abs=0.02)  # tables of eight bits


def test_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "EPOCHS", 25)
    names = ("Bob", "Eve", "Ann", "Max")
    rows = [Row(f"I am {name}.", [(5, 5 + len(name), "PERSON")], "x") for name in names]
    rows += [Row(f"I am {word}.", [], "x") for word in ("old", "new", "late", "here")]
    tagger = new_tagger()
    fit(tagger, list(sentences_of(rows * 16)))
    learnt = NameModel(tensors_of(tagger))
    (sentence,) = sentences_of([Row("I am Eva.", [], "x")])
    assert TAGS[int(learnt.scores(sentence.words)[2].argmax())] == "person"
