"""Quality against cost, or against time where no cost is known: one point per model.

All tiers are in the large panel, and each tier in a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from gateway.evaluation.plot import COLOURS, Panel, Plot, Series
from gateway.evaluation.report import MANY_QUESTIONS, accuracy, cost_of_many, percentile, verdicts_of
from gateway.evaluation.runner import Outcome, Run

ROOM = 1.1  # margin between a point and the edge, a factor on the logarithmic axis
_MARKERS = "osD^vPX"


class Axis(NamedTuple):
    """What right answers are drawn against."""

    label: str
    unit: str
    value: Callable[[Run, Sequence[Outcome]], float | None]  # None or 0: not on a logarithmic axis


Points = Sequence[tuple[float, float] | None]
"""One per run: its value and percent of right answers; None: no value, or no answer in this panel."""


def _seconds(run: Run, outcomes: Sequence[Outcome]) -> float | None:
    seconds = [each.answer.seconds for each in outcomes if each.answer is not None]
    return percentile(seconds, 50) if seconds else None


COST = Axis(f"USD per {MANY_QUESTIONS:,} questions", "USD", cost_of_many)
TIME = Axis("seconds per answer, median", "s", _seconds)


def quality_plot(runs: Sequence[Run]) -> tuple[Plot | None, str]:
    """The plot, None when no question was answered; and what must be told about it, "" for nothing."""
    axis, told = COST, ""
    if not any(_points(COST, runs)):
        axis = TIME
        told = "the plot has seconds, as no model has counted tokens and a price above 0; --price sets one"
    everything = _points(axis, runs)
    if not any(everything):
        return None, "nothing to plot: no question was answered"
    left_out = [run.subject.label for run, point in zip(runs, everything, strict=True) if point is None]
    if left_out:
        why = "because their cost is unknown" if axis is COST else "because they answered nothing"
        told += f"{'; ' if told else ''}not in the plot, {why}: {', '.join(left_out)}"
    tiers = sorted({outcome.question.tier for run in runs for outcome in run.outcomes})
    # One tier would repeat the large panel.
    by_tier = {tier: _points(axis, runs, tier) for tier in tiers} if len(tiers) > 1 else {}
    limits = _decades([point[0] for points in (everything, *by_tier.values()) for point in points if point])
    labels = [
        f"{run.subject.label}: {point[1]:.0f} %, {point[0]:.3g} {axis.unit}" if point else ""
        for run, point in zip(runs, everything, strict=True)
    ]
    large = _panel("all tiers" if by_tier else "", everything, limits, labels, axis.label)
    small = [_panel(f"tier {tier}", points, limits) for tier, points in by_tier.items()]
    return Plot(large, small, num_columns=len(small)), told


def _points(axis: Axis, runs: Sequence[Run], tier: int | None = None) -> Points:
    found: list[tuple[float, float] | None] = []
    for run in runs:
        outcomes = [each for each in run.outcomes if tier is None or each.question.tier == tier]
        value, share = axis.value(run, outcomes), accuracy(verdicts_of(outcomes))
        found.append((value, 100 * share) if value and share is not None else None)
    return found


def _panel(
    title: str, points: Points, limits: tuple[float, float], labels: Sequence[str] = (), x_label: str = ""
) -> Panel:
    """Without labels it is a small one, whose points the large one names."""
    series = [
        Series(
            labels[number] if labels else "",
            point[:1],
            point[1:],
            *(COLOURS[number % len(COLOURS)], "", _MARKERS[number % len(_MARKERS)]),
        )
        for number, point in enumerate(points)
        if point is not None
    ]
    return Panel(
        series=series,
        title=title,
        x_label=x_label,
        y_label="right answers, %" if labels else "",
        x_scale="log",
        x_limits=limits,
        y_limits=(-4, 104),
    )


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Whole powers of ten around the points, so that the axis has round labels."""
    return 10.0 ** floor(log10(min(values) / ROOM)), 10.0 ** ceil(log10(max(values) * ROOM))
