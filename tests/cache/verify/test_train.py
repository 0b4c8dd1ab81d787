"""The training commands of the cache with another encoder: weights that say so and judge its vectors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from backend.classifiers.weights import read_card
from backend.encoder.chosen import ChosenEncoder
from cache.classifiers import freshness, needs_context
from cache.classifiers import train as heads
from cache.verify import Verifier, train
from gateway.cli.main import main
from tests.backend.encoder.checkpoints import write_encoder

SUBJECTS = ("bread", "soup", "rice", "tea", "pasta", "cake", "salad", "coffee", "pie", "jam")
PAIRS = [
    row
    for one, other in zip(SUBJECTS, SUBJECTS[1:] + SUBJECTS[:1], strict=True)
    for row in (
        (f"How do I make {one}?", f"How can I make {one}?", True),
        (f"How do I make {one}?", f"How do I make {other}?", False),
        (f"Where do I buy {one}?", f"Where can I buy {one}?", True),
        (f"Where do I buy {one}?", f"How do I make {one}?", False),
    )
] * 3
TALKS = [
    ("And the other one?", ["How do I make tea?"], True),
    ("What about that?", ["Who wrote it?"], True),
    ("How do I make bread?", ["Where is Rome?"], False),
    ("Who discovered radium?", ["How do I make tea?"], False),
] * 20


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_encoder(tmp_path_factory.mktemp("own") / "e", "mpnet"))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"a": a, "b": b, "same": same, "source": "qqp"} for a, b, same in PAIRS]
    for part in ("train", "dev"):
        write(tmp_path / f"pairs.{part}.jsonl.gz", rows)
    talks = [{"query": q, "history": h, "context_dependent": d} for q, h, d in TALKS]
    write(tmp_path / "followup.train.jsonl.gz", talks)
    monkeypatch.setattr(train, "NUM_PERTURBED", 100)
    monkeypatch.setattr(train, "NUM_TEMPLATES", 40)
    return tmp_path


def test_a_verifier_of_ones_own_encoder(own: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data / "own.safetensors"
    flags = ["--encoder", own, "--languages", "de"]
    train.main(["--data", str(data), "--vectors", str(data), "--out", str(out), "--epochs", "3", *flags])
    card, encoder = read_card(out), ChosenEncoder(own, languages=("de",))
    assert card["encoder"] == encoder.card() and 0 < card["held_out"]["pairs"] < len(PAIRS)
    assert card["held_out"]["auc"] > 0.7

    stream = data / "stream"
    rows = [
        {"query": f"{verb} I make {one}?", "answer_id": one}
        for one in SUBJECTS
        for verb in ("How do", "How can")
    ]
    stream.write_text("\n".join(map(json.dumps, rows)))
    fitting = [
        "eval",
        "cache",
        "--stream",
        str(stream),
        "--weights",
        str(out),
        "--fit-thresholds",
        "--threads",
        "1",
    ]
    assert main(fitting) == 2
    assert "were trained with the encoder e (" in capsys.readouterr().err
    assert main([*fitting, *flags]) == 0
    assert read_card(out)["encoder"] == encoder.card()

    verifier = Verifier.load(out)
    asked, same, other = encoder.embed([PAIRS[0][0], PAIRS[0][1], "Where is Rome?"])
    found = verifier.probabilities(
        PAIRS[0][0], asked, [PAIRS[0][1], "Where is Rome?"], np.stack([same, other])
    )
    assert found[0] > found[1]


def test_heads_of_ones_own_encoder(own: str, data: Path) -> None:
    out = data / "heads.safetensors"
    heads.main(["--data", str(data), "--out", str(out), "--encoder", own])
    assert read_card(out)["encoder"] == ChosenEncoder(own).card()
    texts = ["And the other one?", "How do I make bread?", "Who is the president of France?"]
    pointing, alone, changing = ChosenEncoder(own).embed(texts)
    history = ["How do I make tea?"]
    assert needs_context(texts[0], pointing, history, out) > needs_context(texts[1], alone, history, out)
    assert freshness(texts[2], changing, out) == "slow"
