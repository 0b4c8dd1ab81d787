"""`penstock router train`: from outcomes to an estimate that a policy can name."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from backend.classifiers.weights import read_card, read_weights
from backend.encoder.chosen import ChosenEncoder
from gateway.cli.main import main
from router.estimate.estimate import Estimate
from router.log import Label, Record
from tests.backend.encoder.checkpoints import SIZE, write_encoder


@pytest.fixture
def outcomes(tmp_path: Path) -> Path:
    path = tmp_path / "outcomes.jsonl"
    rows = [
        {
            "prompt": f"{verb} {number}",
            "scores": {"a": score, "b": 1.0},
            "source": "s",
        }
        for number in range(40)
        for verb, score in (("Add", 1.0), ("Prove", 0.0))
    ]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


def test_an_estimate_is_written_with_its_card(
    outcomes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "own.safetensors"
    assert main(["router", "train", "--data", str(outcomes), "--out", str(out)]) == 0
    assert "80 outcomes, mean gain 0.500" in capsys.readouterr().out
    assert Estimate(out).predict("Prove 7").gain > 0.8 > 0.2 > Estimate(out).predict("Add 7").gain
    card = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert card["pairs"] == {"all": ["a", "b"]} and card["outcomes"] == {"s": 80}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "x.bin"], "must end with .safetensors"),
        (["--out", "x.safetensors", "--pair", "s=a"], "must have the form SOURCE=WEAK,STRONG"),
        (["--out", "x.safetensors", "--pair", "other=a,b"], "0 outcomes are too few"),
        (["--out", "x.safetensors", "--weak", "z"], "lack a score of 'z'"),
    ],
)
def test_what_cannot_be_used_is_refused(
    outcomes: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["router", "train", "--data", str(outcomes), *flags]) == 2
    assert message in capsys.readouterr().err


def test_own_traffic_is_learned_from_its_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[Record | Label] = []
    for number in range(60):
        prompt, score = (f"What is {number} + 1?", 1.0) if number % 2 else (f"Prove theorem {number}.", 0.0)
        lines.append(Record(facts={}, version="v", id=str(number), prompt=prompt))
        lines.append(Label(label_of=str(number), scores={"small": score, "large": 1.0}, kind="shadow"))
    log, out = tmp_path / "log", tmp_path / "own.safetensors"
    log.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert main(["router", "train", "--log", str(log), "--out", str(out)]) == 0
    assert "60 outcomes, mean gain 0.500" in capsys.readouterr().out
    estimate = Estimate(out)
    assert estimate.predict("What is 8 + 1?").gain < 0.3 < 0.7 < estimate.predict("Prove theorem 9.").gain
    log.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines[:20]))
    assert main(["router", "train", "--log", str(log), "--out", str(out)]) == 2
    assert "has 10 requests with text and scores of two models; 30 are needed" in capsys.readouterr().err


def test_vectors_of_ones_own_encoder(
    outcomes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = str(write_encoder(tmp_path / "e", "bert"))
    for form, key in (("blend", "vector.weight"), ("domains", "domains.weight")):
        out = tmp_path / f"{form}.safetensors"
        data = outcomes
        if form == "domains":
            data = tmp_path / "tasks.jsonl"
            rows = [
                {"prompt": f"{n} + {n}?", "scores": {"a": 1.0}, "source": "gsm8k-train"} for n in range(60)
            ]
            data.write_text("\n".join(map(json.dumps, rows)))
        flags = ["--form", form, "--encoder", own, "--languages", "de,fr", "--threads", "1"]
        assert main(["router", "train", "--data", str(data), "--out", str(out), *flags]) == 0, (
            capsys.readouterr()
        )
        assert read_card(out)["encoder"] == ChosenEncoder(own, languages=("de", "fr")).card()
        assert read_weights(out)[0][key].shape[0] == SIZE + 1
    assert (
        main(
            [
                "router",
                "train",
                "--data",
                str(outcomes),
                "--out",
                str(out),
                "--form",
                "blend",
                "--encoder",
                "/x",
            ]
        )
        == 2
    )
    assert "is not a folder" in capsys.readouterr().err
