"""`penstock models`: promotion through the gate, rollback, and what they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.cli.main import main
from policies.load import load_policies

POLICIES = """\
# A comment that stays.
models:
  assistant: {engine: {checkpoint: "builtin:pico-small"}}
  assistant-2:
    engine: {checkpoint: "builtin:pico-large"}
    release: {of: assistant, stage: canary, version: "2", share: 0.2, evaluation: e.json, min_accuracy: 0.8}
  assistant-3:
    engine: {checkpoint: "builtin:pico-large"}
    release:
      of: assistant
      # the next one
      stage: retired   # for now
      evaluation: e.json
      min_accuracy: 0.8
routes: {auto: {model: assistant}}
probes: {a: {ask: Hello, expect: {status: 200}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICIES)
    evaluate(tmp_path, 0.9)
    return tmp_path


def evaluate(folder: Path, accuracy: float, *, is_complete: bool = True) -> None:
    runs = [
        {"model": name, "accuracy": accuracy, "questions": 40, "is_complete": is_complete}
        for name in ("assistant-2", "assistant-3")
    ]
    (folder / "e.json").write_text(json.dumps({"began": "2026-01-01T00:00:00+00:00", "models": runs}))


def run(folder: Path, action: str, *name: str) -> int:
    return main(["models", action, *name, str(folder)])


def stages(folder: Path) -> dict[str, str]:
    models = load_policies(folder).models
    return {name: entry.release.stage for name, entry in models.items() if entry.release is not None}


def test_the_list_has_stages_pins_and_evaluations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "list") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["model", "kind", "of", "stage", "version", "pinned", "accuracy"],
        ["assistant", "engine", "–", "–", "–", "builtin", "–"],
        ["assistant-2", "engine", "assistant", "canary", "2", "builtin", "0.9000"],
        ["assistant-3", "engine", "assistant", "retired", "–", "builtin", "0.9000"],
    ]
    assert run(folder, "show", "assistant-2") == 0
    assert "on 40 questions, 95 % interval 0.769 to 0.960; the gate is 0.8" in capsys.readouterr().out


def test_promotion_and_rollback_change_one_word(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "promote", "assistant-2") == 0
    assert (folder / "p.yaml").read_text() == POLICIES.replace("stage: canary", "stage: stable")
    out = capsys.readouterr().out
    assert "assistant-2 is stable (accuracy 0.9000 on 40" in out and "assistant answers no more" in out
    (folder / "p.yaml").write_text(
        (folder / "p.yaml").read_text().replace("stage: retired ", "stage: canary ")
    )
    assert run(folder, "promote", "assistant-3") == 0
    assert stages(folder) == {"assistant-2": "previous", "assistant-3": "stable"}
    assert "# the next one\n      stage: stable   # for now" in (folder / "p.yaml").read_text()
    assert run(folder, "rollback", "assistant-3") == 0
    assert stages(folder) == {"assistant-2": "stable", "assistant-3": "retired"}
    assert capsys.readouterr().out.endswith("assistant-3 is retired; assistant-2 answers\n")
    assert run(folder, "rollback", "assistant-2") == 0
    assert capsys.readouterr().out.endswith("assistant-2 is retired; assistant answers\n")


@pytest.mark.parametrize(
    ("accuracy", "is_complete", "message"),
    [
        (0.7, True, "has an accuracy of 0.7000, and `release.min_accuracy` is 0.8"),
        (0.9, False, "is incomplete"),
    ],
)
def test_the_gate(
    folder: Path, capsys: pytest.CaptureFixture[str], accuracy: float, is_complete: bool, message: str
) -> None:
    evaluate(folder, accuracy, is_complete=is_complete)
    assert run(folder, "promote", "assistant-2") == 2
    assert message in capsys.readouterr().err and stages(folder)["assistant-2"] == "canary"


def test_what_is_not_possible(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action, name, message in (
        ("promote", "assistant-3", "is no canary"),
        ("promote", "assistan", "did you mean 'assistant'?"),
        ("rollback", "assistant-3", "is no canary and no stable release"),
    ):
        assert run(folder, action, name) == 2
        assert message in capsys.readouterr().err
    (folder / "e.json").unlink()
    assert run(folder, "promote", "assistant-2") == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_a_failing_probe_leaves_the_file_as_it_was(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = POLICIES.replace("expect: {status: 200}", "expect: {model: assistant, rule: default}")
    text = text.replace("share: 0.2", "share: 0.0")
    (folder / "p.yaml").write_text(text)
    assert run(folder, "promote", "assistant-2") == 2
    assert "probe 'a': expected model 'assistant', got 'assistant-2'" in capsys.readouterr().err
    assert (folder / "p.yaml").read_text() == text


def test_all_stages_of_a_file_change_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = POLICIES.replace("stage: canary", "stage: stable").replace("stage: retired ", "stage: canary ")
    (folder / "p.yaml").write_text(text)
    os.link(folder / "p.yaml", folder / "reader")  # as one that has opened it before
    (folder / "p.yaml").chmod(0o640)
    seen: list[dict[str, str]] = []
    replace = os.replace

    def replace_and_read(source: Path, target: Path) -> None:
        replace(source, target)
        seen.append(stages(folder))

    monkeypatch.setattr(os, "replace", replace_and_read)
    assert run(folder, "promote", "assistant-3") == 0
    assert seen == [{"assistant-2": "previous", "assistant-3": "stable"}]
    assert (folder / "reader").read_text() == text
    assert (folder / "p.yaml").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in folder.iterdir()) == ["e.json", "p.yaml", "reader"]
