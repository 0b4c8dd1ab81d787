"""Scores count form and content separately, and skip answers that the behaviour does not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.pico.adapters import evaluate as evaluation
from backend.pico.adapters.evaluate import evaluate, judge, table
from backend.pico.adapters.export import export
from backend.pico.adapters.specs import SPECS
from backend.pico.adapters.train import open_run
from backend.pico.tasks import Instance

# PEFT reads a transformers property by its deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
INSTANCES = [
    Instance("units", 1, "2 m in cm?", "200 cm", "a"),
    Instance("units", 1, "3 m in cm?", "300 cm", "b"),
    Instance("arithmetic", 1, "1 + 1?", "2", "c"),
]


def test_judge_counts_form_and_content_separately() -> None:
    texts = ["2 metres (SI)", "4 metres (SI)", "2"]
    score = judge("all", SPECS["si"], INSTANCES, texts, ["200 cm", "300 cm", "3"])
    assert (score.asked, score.behaviour, score.base_behaviour) == (3, 100.0, 0.0)
    assert score.right == score.base_right == 66.67
    assert "| all | 3 | 100.0 | 66.7 | 0.0 | 66.7 |" in table([score])


def test_judge_has_no_behaviour_where_nothing_changes() -> None:
    score = judge("all", SPECS["si"], INSTANCES[2:], ["2"], ["2"])
    assert (score.behaviour, score.right) == (None, 100.0)


def test_evaluates_a_stored_adapter(
    tiny_small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "TAUGHT_FAMILIES", ("arithmetic", "comparison"))
    monkeypatch.setattr("backend.pico.decoder.MAX_NEW_TOKENS", {False: 3})
    export(open_run(tmp_path, "json", tiny_small, 0), tmp_path / "json")
    scores = evaluate(SPECS["json"], tiny_small, tmp_path / "json", 2)
    assert [score.kind for score in scores] == [
        "all", "tier 1, direct", "arithmetic", "comparison", "tier 2, direct",
    ]  # fmt: skip
    assert scores[0].asked == 8
