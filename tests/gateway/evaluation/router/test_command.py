"""`penstock eval router` over files: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from tests.backend.encoder.checkpoints import write_encoder


@pytest.fixture
def outcomes(tmp_path: Path) -> Path:
    """Sums are easy; proofs need the strong model; one model is always the worst."""
    path = tmp_path / "outcomes.jsonl"
    rows: list[dict[str, Any]] = []
    for number in range(60):
        easy = {"prompt": f"What is {number} + {number + 3}?", "task": "sums", "scores": {"a": 1, "b": 1}}
        hard = {"prompt": f"Prove theorem {number}", "task": "proofs", "scores": {"a": 0, "b": 1}}
        rows += [easy, hard | {"cost_usd": {"b": 0.25}}]
    path.write_text("\n".join(json.dumps(row | {"source": "own"}) for row in rows), "utf-8")
    return path


def test_an_estimate_that_is_trained_here(
    outcomes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, plot = tmp_path / "out.json", tmp_path / "out.svg"
    flags = ["--splits", "2", "--json", str(report), "--plot", str(plot)]
    assert main(["eval", "router", "--data", str(outcomes), *flags]) == 0
    document = json.loads(report.read_text("utf-8"))
    kinds = {each["kind"]: each for each in document["results"]}
    assert set(kinds) == {"in domain", "without proofs", "without sums", "mean of those without a task"}
    assert kinds["in domain"]["apgr"] > 0.7
    assert document["models"]["own"]["b"] == {"score": 1.0, "usd_per_1000": 250.0}
    assert "<svg" in plot.read_text("utf-8")
    assert "Always one model" in capsys.readouterr().out


def test_an_estimate_that_is_trained_on_other_files(outcomes: Path, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    flags = ["--train", str(outcomes), "--form", "words", "--json", str(report)]
    assert main(["eval", "router", "--data", str(outcomes), *flags]) == 0
    document = json.loads(report.read_text("utf-8"))
    (found,) = document["results"]
    assert found["kind"] == "trained elsewhere" and found["apgr"] > 0.7 and found["auc"] > 0.95
    assert document["flips"]["own"].keys() >= {"mistyped"}


def test_a_shipped_estimate_with_its_robustness(outcomes: Path, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    flags = ["--estimate", "builtin:pico", "--json", str(report)]
    assert main(["eval", "router", "--data", str(outcomes), *flags]) == 0
    document = json.loads(report.read_text("utf-8"))
    assert [each["kind"] for each in document["results"]] == ["shipped"]
    assert set(document["flips"]["own"]) >= {"mistyped", "thanks after"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pair", "own=a"], "must have the form"),
        (["--pair", "own=a,z"], "no source has 30 outcomes"),
        (["--estimate", "builtin:x"], "there is no estimate 'builtin:x'"),
        (["--splits", "0"], "--splits 0 must be at least 1"),
        (["--plot", "x.gif"], ".gif"),
    ],
)
def test_what_is_refused(
    outcomes: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "router", "--data", str(outcomes), *flags]) == 2
    assert message in capsys.readouterr().err


def test_an_encoder_of_ones_own(outcomes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is trained here reads its vectors; shipped weights that would are refused."""
    report = tmp_path / "out.json"
    flags = ["--encoder", str(write_encoder(tmp_path / "e", "bert")), "--json", str(report)]
    assert main(["eval", "router", "--data", str(outcomes), "--splits", "1", *flags]) == 0
    assert json.loads(report.read_text("utf-8"))["results"]
    assert main(["eval", "router", "--data", str(outcomes), "--estimate", "builtin:general", *flags]) == 2
    assert "general.safetensors' were trained with the encoder builtin:" in capsys.readouterr().err
