"""The plot holds each model that has a cost, and says which have none; without any cost it shows seconds."""

from __future__ import annotations

from decimal import Decimal

from gateway.evaluation.plot import Plot, draw
from gateway.evaluation.price import TokenPrice
from gateway.evaluation.quality_plot import quality_plot
from gateway.evaluation.runner import Run, Subject
from tests.gateway.evaluation.scripted import PRICE, outcome, run_of

FREE = TokenPrice(Decimal(0), Decimal(0))


def runs(*subjects: Subject) -> list[Run]:
    outcomes = [outcome(verdict, tier=tier) for tier in (1, 2) for verdict in ("right", "wrong", "failed")]
    return [run_of(*outcomes, subject=subject) for subject in subjects]


def drawn(plot: Plot | None) -> str:
    assert plot is not None
    return draw(plot, "svg").decode()


def test_svg_names_models_and_tiers() -> None:
    subjects = [Subject("small", price=PRICE), Subject("large", "low", PRICE)]
    plot, told = quality_plot(runs(*subjects, Subject("unpriced"), Subject("free", "", FREE)))
    assert told == "not in the plot, because their cost is unknown: unpriced, free"
    text = drawn(plot)
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
    assert drawn(plot) == text


def test_a_single_tier_has_one_panel() -> None:
    plot, told = quality_plot([run_of(outcome("right"))])
    assert plot is not None and plot.large is not None
    assert (plot.small, plot.large.title, told) == ([], "", "")


def test_without_any_cost_models_are_drawn_over_seconds() -> None:
    plot, told = quality_plot(runs(Subject("unpriced"), Subject("free", "", FREE)))
    assert "the plot has seconds" in told and "--price sets one" in told
    text = drawn(plot)
    assert ">unpriced: 33 %, 0.5 s<" in text and ">free: 33 %, 0.5 s<" in text
    assert ">seconds per answer, median<" in text and "USD" not in text


def test_a_model_without_an_answer_is_named() -> None:
    broken = run_of(outcome("failed"), subject=Subject("broken"))
    plot, told = quality_plot([*runs(Subject("unpriced")), broken])
    assert told.endswith("--price sets one; not in the plot, because they answered nothing: broken")
    assert "broken" not in drawn(plot)


def test_nothing_to_plot() -> None:
    plot, told = quality_plot([run_of(outcome("failed"))])
    assert (plot, told) == (None, "nothing to plot: no question was answered")


def test_failed_questions_are_not_right_in_the_plot() -> None:
    answered = run_of(outcome("right"), outcome("right", tier=2), outcome("failed"), outcome("skipped"))
    plot, _ = quality_plot([answered])
    assert plot is not None and plot.large is not None
    panels = [plot.large, *plot.small]
    assert [round(panel.series[0].y[0], 1) for panel in panels] == [66.7, 50.0, 100.0]
