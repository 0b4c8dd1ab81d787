"""Quality against cost: one point per model, all tiers in the large panel and each tier in a small one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.evaluation.files import write_file
from gateway.cli.evaluation.report import MANY_QUESTIONS, accuracy, cost_of_many, verdicts_of
from gateway.cli.evaluation.runner import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The Okabe-Ito palette, which is safe for colour-blind readers."""
ROOM = 1.1  # margin between a point and the edge, a factor on the logarithmic axis
NEAR = 10.0  # labels of points whose costs differ by less than this factor may overlap
LINE_PERCENT = 5.0  # the height of a label
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
    # Text stays text in SVG, and equal numbers give an equal file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.size": 9}):
        figure, drawn = _figure(everything, panels), BytesIO()
        kind = path.suffix.removeprefix(".")
        figure.savefig(drawn, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    write_file(path, drawn.getvalue())
    return [run.subject.label for run, point in zip(runs, everything, strict=True) if point is None]


def _point(run: Run, tier: int | None) -> Point | None:
    outcomes = [o for o in run.outcomes if tier is None or o.question.tier == tier]
    cost, share = cost_of_many(run, outcomes), accuracy(verdicts_of(outcomes))
    return Point(run.subject.label, cost, 100 * share) if cost and share is not None else None


def _figure(everything: Points, panels: dict[str, Points]) -> Figure:
    """A large panel with labels above the small ones, all with the same axes."""
    from matplotlib.figure import Figure

    limits = _decades([p.usd for points in (everything, *panels.values()) for p in points if p is not None])
    figure = Figure(figsize=(7.2, 6.4 if panels else 4.2), layout="constrained")
    grid = figure.add_gridspec(
        2 if panels else 1, len(panels) or 1, height_ratios=[1.9, 1] if panels else None
    )
    large = figure.add_subplot(grid[0, :])
    _draw(large, "all tiers" if panels else "", everything, limits)
    _name_points(large, [point for point in everything if point is not None], limits)
    large.set_ylabel("right answers, %")
    for column, (title, points) in enumerate(panels.items()):
        small = figure.add_subplot(grid[1, column])
        _draw(small, title, points, limits)
        small.tick_params(labelleft=column == 0)
    figure.supxlabel(f"USD per {MANY_QUESTIONS:,} questions", fontsize=9)
    return figure


def _decades(costs: Sequence[float]) -> tuple[float, float]:
    """Whole powers of ten around the points, so that the axis has round labels."""
    return 10.0 ** floor(log10(min(costs) / ROOM)), 10.0 ** ceil(log10(max(costs) * ROOM))


def _name_points(axes: Axes, points: Sequence[Point], limits: tuple[float, float]) -> None:
    """Write each label beside its point, towards the middle of the panel."""
    for point, height in zip(points, place_names(points), strict=True):
        is_right = point.usd**2 > limits[0] * limits[1]
        axes.annotate(
            point.label,
            (point.usd, height),
            (-8, 0) if is_right else (8, 0),
            textcoords="offset points",
            ha="right" if is_right else "left",
            va="center",
        )


def place_names(points: Sequence[Point]) -> list[float]:
    """The height of each point's label: the point's own, or lower where it would overlap another label."""
    heights: dict[int, float] = {}
    for index in sorted(range(len(points)), key=lambda index: -points[index].percent):
        point = points[index]
        near = [
            height
            for other, height in heights.items()
            if max(points[other].usd, point.usd) < NEAR * min(points[other].usd, point.usd)
        ]
        heights[index] = min([point.percent, *(height - LINE_PERCENT for height in near)])
    return [heights[index] for index in range(len(points))]


def _draw(axes: Axes, title: str, points: Points, limits: tuple[float, float]) -> None:
    from matplotlib.ticker import NullFormatter

    axes.set_title(title, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(limits)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(-4, 104)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for index, point in enumerate(points):
        if point is not None:
            colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
            axes.plot(point.usd, point.percent, marker, color=colour, markersize=6, clip_on=False)
