from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from backend.classifiers.weights import read_weights
from cache.verify.verifier import WEIGHTS
from gateway.cli.main import main

PAIRS = [
    ("How do I learn Python quickly?", "What is the fastest way to learn Python?", True, "paraphrase"),
    ("How can I lose weight?", "What is the best way to lose weight?", True, "paraphrase"),
    ("What is the capital of Peru?", "Who wrote Hamlet?", False, "other"),
    ("How do I bake bread?", "Why do cats purr?", False, "other"),
]
STREAM = [
    ("How do I learn Python quickly?", "python"),
    ("How do I learn Python quickly?", "python"),
    ("How can I learn Python quickly?", "python"),
    ("Who won the race in 1998?", "race98"),
    ("Who won the race in 1999?", "race99"),
]


def test_pairs_and_stream_are_measured_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, stream, result = tmp_path / "pairs", tmp_path / "stream", tmp_path / "out.json"
    rows = [json.dumps({"a": a, "b": b, "same": same, "source": source}) for a, b, same, source in PAIRS]
    pairs.write_text("\n".join(rows))
    stream.write_text("\n".join(json.dumps({"query": q, "answer_id": a}) for q, a in STREAM))
    plot = tmp_path / "out.svg"
    arguments = ["eval", "cache", "--pairs", str(pairs), "--stream", str(stream), "--threads", "1"]
    assert main([*arguments, "--json", str(result), "--plot", str(plot)]) == 0
    document = json.loads(result.read_text())
    by_source = {each["source"]: each for each in document["pairs"]}
    assert by_source.keys() == {"paraphrase", "other", "all"}
    assert by_source["all"]["auc"] == 1
    assert by_source["paraphrase"]["auc"] is None
    (replayed,) = document["streams"]
    assert replayed["exact_hit_ratio"] == 0.2
    best = replayed["verifier_best"]
    assert best["num_false"] == 0 and best["num_hits"] == 2
    assert {one["threshold"] for one in replayed["cosine"]} >= {0.8, 0.85, 0.9, 0.95}
    assert plot.read_text().lstrip().startswith("<?xml")
    printed = capsys.readouterr().out
    assert "AUC cosine" in printed and "shipped P: 0." in printed


def test_a_question_that_is_too_long_is_a_miss(tmp_path: Path) -> None:
    long, pairs, stream, result = (
        "x " * 20_000,
        tmp_path / "pairs",
        tmp_path / "stream",
        tmp_path / "out.json",
    )
    rows = [{"a": long, "b": "y", "same": False}, {"a": long, "b": "y " * 20_000, "same": True}]
    pairs.write_text("\n".join(map(json.dumps, rows)))
    stream.write_text("\n".join(json.dumps({"query": q, "answer_id": a}) for q, a in [*STREAM, (long, "x")]))
    arguments = ["eval", "cache", "--pairs", str(pairs), "--stream", str(stream), "--threads", "1"]
    assert main([*arguments, "--json", str(result)]) == 0
    document = json.loads(result.read_text())
    assert document["pairs"][0]["levels"][0]["num_served"] == 0
    assert document["streams"][0]["verifier_shipped"]["num_false"] == 0


def test_kinds_are_counted_as_the_gateway_serves_them(tmp_path: Path) -> None:
    pairs, result = tmp_path / "pairs", tmp_path / "out.json"
    rows = [
        ("What is 5 - 17?", "What is 17 - 5?", False, "turned"),
        ("How can I lose weight?", "What is the best way to lose weight?", True, "worded"),
        ("What is the capital of Peru?", "what is the capital of Peru?", True, "worded"),
        ("Wie alt ist Anna?", "Wie alt ist die Anna?", True, "German"),
    ]
    pairs.write_text(
        "\n".join(json.dumps({"a": a, "b": b, "same": same, "kind": kind}) for a, b, same, kind in rows)
    )
    arguments = ["eval", "cache", "--pairs", str(pairs), "--kinds", "--threads", "1"]
    assert main([*arguments, "--json", str(result)]) == 0
    kinds = {each["kind"]: each for each in json.loads(result.read_text())["kinds"]}
    assert (kinds["turned"]["num_different"], kinds["turned"]["num_false"]) == (1, 0)
    assert (kinds["worded"]["num_same"], kinds["worded"]["num_right"]) == (2, 2)
    assert (kinds["German"]["num_same"], kinds["German"]["num_right"]) == (1, 0)


def test_thresholds_are_fitted_to_the_stream_and_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "verifier.safetensors"
    for suffix in (".safetensors", ".json"):
        shutil.copy(WEIGHTS.with_suffix(suffix), weights.with_suffix(suffix))
    stream = tmp_path / "stream"
    stream.write_text("\n".join(json.dumps({"query": q, "answer_id": a}) for q, a in STREAM))
    flags = ["--weights", str(weights), "--threads", "1", "--fit-thresholds"]
    assert main(["eval", "cache", "--stream", str(stream), *flags]) == 0
    thresholds = read_weights(weights)[0]["thresholds"]
    assert thresholds.shape == (6, 2) and (thresholds[:, 0] > 0).all() and (thresholds[:, 1] < 1).all()
    assert main(["eval", "cache", "--pairs", str(stream), "--fit-thresholds"]) == 2
    assert "exactly one --stream" in capsys.readouterr().err
