"""What all plots share: plain numbers on axes, a legend that hides nothing, reproducible files."""

from __future__ import annotations

import textwrap
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.evaluation.outputs import write_file

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DPI = 160
FEW_DECADES = 2.5
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "penstock"}
"""Text stays text in SVG, and equal numbers give an equal file."""


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most this many characters, names without spaces too."""
    return "\n".join(textwrap.wrap(text, width)) or text


def plain_numbers(axis: Axis, limits: tuple[float, float] | None = None) -> None:
    """Label a logarithmic axis as 0.001 and 20, not as powers; within few decades also at 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    if limits is not None and limits[1] / limits[0] < 10**FEW_DECADES:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def legend_below(figure: Figure, num_columns: int = 2) -> None:
    """Name everything that is drawn under the axes, where no label can hit another or a point."""
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in found}
    if found:
        columns = num_columns if all(len(label) < LONG_LABEL for label in found) else 1
        figure.legend(
            [*found.values()],
            [*found],
            loc="outside lower center",
            ncols=columns,
            fontsize="small",
            frameon=False,
        )


LONG_LABEL = 44


def save_figure(figure: Figure, path: Path) -> None:
    """Write it in the format of the path's suffix. Raises OSError."""
    from matplotlib import rc_context

    kind, drawn = path.suffix.removeprefix("."), BytesIO()
    with rc_context(_STYLE):
        figure.savefig(drawn, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    write_file(path, drawn.getvalue())
