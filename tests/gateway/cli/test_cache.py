"""`penstock cache explain` with the shipped encoder and verifier."""

from __future__ import annotations

import json

import pytest

from gateway.cli.main import main


@pytest.mark.parametrize(
    ("asked", "known", "verdict", "words"),
    [
        (" What is 17 plus 25? ", "What is 17 plus 25?", "exact", "the same after normalisation"),
        ("Good morning! How are you?", "Good morning, how are you?", "semantic", "enough probability"),
        ("What is 17 plus 26?", "What is 17 plus 25?", "near", "their numbers differ"),
        ("Is coffee not healthy?", "Is coffee healthy?", "near", "one of them is negated"),
        ("How do I boil an egg?", "Who wrote Hamlet?", "miss", "does not serve both"),
        ("Show me my balance", "What is the balance of my account?", "miss", "own data"),
    ],
)
def test_verdicts(
    asked: str, known: str, verdict: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "explain", asked, known]) == 0
    text = capsys.readouterr().out
    assert text.startswith("verdict") and f" {verdict}: " in text and words in text
    assert main(["cache", "explain", "--json", asked, known]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == verdict and 0 <= found["probability"] <= 1


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
