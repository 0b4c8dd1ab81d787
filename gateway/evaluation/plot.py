"""Quality against cost: one point per model, all tiers in the large panel and each tier in a small one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.evaluation.figures import legend_below, plain_numbers, save_figure, wrapped
from gateway.evaluation.report import MANY_QUESTIONS, accuracy, cost_of_many, verdicts_of
from gateway.evaluation.runner import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The Okabe-Ito palette, which is safe for colour-blind readers."""
ROOM = 1.1  # margin between a point and the edge, a factor on the logarithmic axis
_MARKERS = "osD^vPX"


@dataclass(frozen=True, slots=True)
class Point:
    """A model in one panel."""

    label: str
    usd: float  # for MANY_QUESTIONS questions
    percent: float


Points = Sequence[Point | None]
"""One per run; None: no cost, or no answer in this panel."""


class PlotError(Exception):
    """The plot cannot be drawn; the message gives the reason and the remedy."""


def save_plot(runs: Sequence[Run], path: Path) -> list[str]:
    """Draw the runs and write the file; returns the labels of runs without a cost, which are left out.

    Raises PlotError when none has a cost.
    """
    from matplotlib import rc_context

    tiers = sorted({outcome.question.tier for run in runs for outcome in run.outcomes})
    panels: dict[str, Points] = {f"tier {tier}": [_point(run, tier) for run in runs] for tier in tiers}
    if len(tiers) < 2:  # it would repeat the large panel
        panels.clear()
    everything = [_point(run, None) for run in runs]
    if not any(everything):
        raise PlotError("nothing to plot: no model has both answers and a price above 0; --price sets one")
    with rc_context({"font.size": 9}):
        save_figure(_figure(everything, panels), path)
    return [run.subject.label for run, point in zip(runs, everything, strict=True) if point is None]


def _point(run: Run, tier: int | None) -> Point | None:
    outcomes = [o for o in run.outcomes if tier is None or o.question.tier == tier]
    cost, share = cost_of_many(run, outcomes), accuracy(verdicts_of(outcomes))
    return Point(run.subject.label, cost, 100 * share) if cost and share is not None else None


def _figure(everything: Points, panels: dict[str, Points]) -> Figure:
    """A large panel above the small ones, all with the same axes, and the legend below."""
    from matplotlib.figure import Figure

    limits = _decades([p.usd for points in (everything, *panels.values()) for p in points if p is not None])
    num_points = sum(point is not None for point in everything)
    figure = Figure(figsize=(7.2, (6.4 if panels else 4.2) + 0.2 * num_points), layout="constrained")
    grid = figure.add_gridspec(
        2 if panels else 1, len(panels) or 1, height_ratios=[1.9, 1] if panels else None
    )
    large = figure.add_subplot(grid[0, :])
    _draw(large, "all tiers" if panels else "", everything, limits, is_named=True)
    plain_numbers(large.xaxis, limits)
    large.set_ylabel("right answers, %")
    for column, (title, points) in enumerate(panels.items()):
        small = figure.add_subplot(grid[1, column])
        _draw(small, title, points, limits)
        small.tick_params(labelleft=column == 0)
        plain_numbers(small.xaxis)
    large.set_xlabel(f"USD per {MANY_QUESTIONS:,} questions", fontsize=9)
    legend_below(figure)
    return figure


def _decades(costs: Sequence[float]) -> tuple[float, float]:
    """Whole powers of ten around the points, so that the axis has round labels."""
    return 10.0 ** floor(log10(min(costs) / ROOM)), 10.0 ** ceil(log10(max(costs) * ROOM))


def _draw(
    axes: Axes, title: str, points: Points, limits: tuple[float, float], *, is_named: bool = False
) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(limits)
    axes.set_ylim(-4, 104)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for index, point in enumerate(points):
        if point is not None:
            style: dict[str, Any] = {
                "color": _COLOURS[index % len(_COLOURS)],
                "marker": _MARKERS[index % len(_MARKERS)],
            }
            told = f"{point.label}: {point.percent:.0f} %, {point.usd:.3g} USD"
            label = wrapped(told, 80) if is_named else "_"  # "_": not in the legend
            axes.plot(point.usd, point.percent, ls="", ms=6, clip_on=False, label=label, **style)
