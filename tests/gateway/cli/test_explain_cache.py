"""`penstock cache explain` with the shipped encoder and verifier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache.semantic_cache import MIN_COSINE
from gateway.cli.main import main


@pytest.mark.parametrize(
    ("asked", "known", "verdict", "words"),
    [
        (" What is 17 plus 25? ", "What is 17 plus 25?", "exact", "the same after normalisation"),
        ("Good morning! How are you?", "Good morning, how are you?", "semantic", "enough probability"),
        ("What is 17 plus 26?", "What is 17 plus 25?", "near", "their numbers differ"),
        ("Is coffee not healthy?", "Is coffee healthy?", "near", "one of them is negated"),
        ("How do I boil an egg?", "Who wrote Hamlet?", "miss", "too far apart"),
        ("Show me my balance", "What is the balance of my account?", "miss", "own data"),
    ],
)
def test_verdicts(
    asked: str, known: str, verdict: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "explain", asked, known]) == 0
    text = capsys.readouterr().out
    assert text.startswith("verdict") and f" {verdict}: " in text and words in text


def test_questions_too_far_apart_are_not_compared_whatever_the_verifier_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = ["What is the boiling point of water?", "boiling point of H2O in degrees"]
    assert main(["cache", "explain", "--json", "--max-error-rate", "0.5", *pair]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cosine"] < MIN_COSINE and found["verdict"] == "miss" and "too far apart" in found["reason"]


def test_earlier_turns_decide_whether_a_turn_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["And in Spain please?", "And in Spain, please?"]
    assert main(["cache", "explain", *pair]) == 0
    assert "earlier turns" not in capsys.readouterr().out
    assert main(["cache", "explain", *pair, "--after", "When do shops close in Italy?"]) == 0
    assert "miss: it depends on earlier turns" in capsys.readouterr().out


def test_the_policies_choose_the_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = tmp_path / "p.yaml"
    policies.write_text("models: {a: {engine: {checkpoint: 'builtin:pico-small'}}}\n")
    assert main(["cache", "explain", "a", "b", str(tmp_path)]) == 2
    assert "no model with a section `encoder`" in capsys.readouterr().err
    policies.write_text(
        "cache: {max_error_rate: 0.05, ttl_s: 60}\n"
        "models: {e: {encoder: {checkpoint: 'builtin:all-minilm-l6-v2', prompt: 'query: '}}}\n"
    )
    assert main(["cache", "explain", "a", "b", str(tmp_path)]) in (0, 2)
    said = capsys.readouterr()
    assert "trained with the encoder" in said.err or "60 s at most" in said.out


def test_a_laxer_error_rate_lowers_the_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    thresholds = []
    for rate in ("0.01", "0.05"):
        assert main(["cache", "explain", "--json", "--max-error-rate", rate, "One?", "Two?"]) == 0
        thresholds.append(json.loads(capsys.readouterr().out)["threshold"])
    assert thresholds[1] < thresholds[0]


@pytest.mark.parametrize("rate", ["0", "0.9", "x"])
def test_an_impossible_error_rate_is_refused(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cache", "explain", "--max-error-rate", rate, "a", "b"])
    assert ended.value.code == 2 and "--max-error-rate" in capsys.readouterr().err
