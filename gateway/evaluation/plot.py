"""How every plot of an evaluation looks: plain numbers on axes, a legend that hides nothing, equal files."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The Okabe-Ito palette, which is safe for colour-blind readers."""
GREY = "#777777"
DPI = 160
FEW_DECADES = 2.5
LONG_LABEL = 44
LEGEND_WIDTH = 95
LARGE_INCHES = (7.2, 4.2)
SMALL_WIDTH = 4.2
_STYLE: Any = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "penstock"}
"""Text stays text in SVG, and equal numbers give an equal file."""


@dataclass(frozen=True, slots=True)
class Series:
    """A curve, or points; two of one label have one line in the legend."""

    label: str  # "": not in the legend
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    line: str = "-"  # of matplotlib; "": points only
    marker: str = ""
    is_hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes."""

    series: Sequence[Series]
    x_label: str = ""
    y_label: str = ""
    title: str = ""
    x_scale: Literal["linear", "log", "symlog"] = "linear"
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A large panel, or small ones beside each other, or one above the others; the legend is below."""

    large: Panel | None = None
    small: Sequence[Panel] = ()
    num_columns: int = 3  # of small panels


def draw(plot: Plot, kind: str) -> bytes:
    """The file of a plot: `kind` is svg or png."""
    from matplotlib import rc_context

    drawn = BytesIO()
    with rc_context(_STYLE):
        metadata = {"Date": None} if kind == "svg" else None
        figure_of(plot).savefig(drawn, format=kind, dpi=DPI, metadata=metadata)
    return drawn.getvalue()


def figure_of(plot: Plot) -> Figure:
    """The plot as matplotlib draws it."""
    from matplotlib.figure import Figure

    columns = min(plot.num_columns, len(plot.small)) or 1
    rows = ceil(len(plot.small) / columns)
    width, height = LARGE_INCHES if plot.large else (SMALL_WIDTH * columns, 0.0)
    row_height = 2.2 if plot.large else 3.4
    heights = [*([height] if plot.large else []), *[row_height] * rows]
    panels = [*([plot.large] if plot.large else []), *plot.small]
    num_labels = len({each.label for panel in panels for each in panel.series if each.label})
    figure = Figure(figsize=(width, sum(heights) + 0.2 * num_labels), layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    if plot.large:
        _draw(figure.add_subplot(grid[0, :]), plot.large)
    for number, panel in enumerate(plot.small):
        row, column = divmod(number, columns)
        axes = figure.add_subplot(grid[row + bool(plot.large), column])
        _draw(axes, panel, is_small=True)
        if panel.y_limits is not None and column:  # the first of the row has the same
            axes.tick_params(labelleft=False)
    _legend_below(figure)
    return figure


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most this many characters, names without spaces too."""
    return "\n".join(textwrap.wrap(text, width)) or text


def _draw(axes: Axes, panel: Panel, *, is_small: bool = False) -> None:
    axes.set_title(wrapped(panel.title, LONG_LABEL), fontsize="medium")
    if panel.x_scale == "symlog":
        axes.set_xscale("symlog", linthresh=0.5)
    else:
        axes.set_xscale(panel.x_scale)
    for each in panel.series:
        style: dict[str, Any] = {"marker": each.marker, "markersize": 3 if each.line else 6}
        style |= {"linestyle": each.line or "none", "clip_on": bool(each.line)}
        if each.is_hollow:
            style |= {"markersize": 10, "markeredgecolor": "#222222", "markerfacecolor": "none"}
        label = wrapped(each.label, LEGEND_WIDTH) or "_"  # "_": not in the legend
        axes.plot(each.x, each.y, color=each.colour, label=label, **style)
    if panel.x_limits is not None:
        axes.set_xlim(panel.x_limits)
    if panel.y_limits is not None:
        axes.set_ylim(panel.y_limits)
    if panel.x_scale != "linear":
        _number_plainly(axes.xaxis, None if is_small else panel.x_limits)
    axes.set_xlabel(wrapped(panel.x_label, LONG_LABEL if is_small else LEGEND_WIDTH))
    axes.set_ylabel(panel.y_label)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _number_plainly(axis: Axis, limits: tuple[float, float] | None = None) -> None:
    """Label a logarithmic axis as 0.001 and 20, not as powers; within few decades also at 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    if limits is not None and limits[1] / limits[0] < 10**FEW_DECADES:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def _legend_below(figure: Figure) -> None:
    """Name everything that is drawn under the axes, where no label can hit another or a point."""
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in found}
    if found:
        columns = min(3, LEGEND_WIDTH // max(map(len, found))) or 1
        style: Any = {"fontsize": "small", "frameon": False, "handlelength": 3}
        figure.legend([*found.values()], [*found], loc="outside lower center", ncols=columns, **style)
