"""The plot holds each model that has a cost, and says which have none."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gateway.evaluation.plot import PlotError, _point, save_plot
from gateway.evaluation.price import TokenPrice
from gateway.evaluation.runner import Run, Subject
from tests.gateway.evaluation.scripted import PRICE, outcome, run_of


def runs() -> list[Run]:
    outcomes = [outcome(verdict, tier=tier) for tier in (1, 2) for verdict in ("right", "wrong", "failed")]
    free = TokenPrice(Decimal(0), Decimal(0))
    subjects = [
        Subject("small", price=PRICE),
        Subject("large", "low", PRICE),
        Subject("unpriced"),
        Subject("free", "", free),
    ]
    return [run_of(*outcomes, subject=subject) for subject in subjects]


def test_svg_names_models_and_tiers(tmp_path: Path) -> None:
    assert save_plot(runs(), tmp_path / "a.svg") == ["unpriced", "free"]
    text = (tmp_path / "a.svg").read_text()
    for words in (
        ">small: 33 %, 0.03 USD<",
        ">large (low): 33 %, 0.03 USD<",
        ">tier 1<",
        ">tier 2<",
        ">all tiers<",
        ">USD per 1,000 questions<",
    ):
        assert words in text
    assert "unpriced" not in text
    save_plot(runs(), tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_text() == text


def test_png_of_a_single_tier(tmp_path: Path) -> None:
    save_plot([run_of(outcome("right"))], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_full_disk_leaves_the_old_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.svg"
    path.write_text("old")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        save_plot([run_of(outcome("right"))], path)
    assert path.read_text() == "old"


def test_nothing_to_plot(tmp_path: Path) -> None:
    with pytest.raises(PlotError, match="nothing to plot"):
        save_plot([run_of(outcome("failed"))], tmp_path / "a.svg")


def test_failed_questions_are_not_right_in_the_plot() -> None:
    run = run_of(outcome("right"), outcome("right", tier=2), outcome("failed"), outcome("skipped"))
    points = [_point(run, tier) for tier in (None, 1, 2)]
    assert [point and round(point.percent, 1) for point in points] == [66.7, 50.0, 100.0]
