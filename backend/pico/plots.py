"""The report's plots as SVG files: `python -m backend.pico.plots --results DIR`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.classifiers.training_files import run
from backend.pico.report import MODES, PLOTS, TIERS, tier_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#8c8c8c", "#3b75af", "#d1603d", "#5a9a58")

Results = Mapping[str, Any]


def plot_tiers(axes: Axes, results: Results) -> None:
    """Plot accuracy per tier, one bar per model and mode."""
    names = [name for name in MODES if name in results]
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        places = [tier + (index - (len(names) - 1) / 2) * width for tier in TIERS]
        bars = axes.bar(places, tier_means(results[name]), width, label=MODES[name], color=COLOURS[index])
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set(xlabel="tier", ylabel="right answers, %", ylim=(0, 106), xticks=TIERS)
    axes.legend(loc="upper right" if len(names) == 1 else "lower left", fontsize=8)


def plot_load(axes: Axes, results: Results) -> None:
    """Plot the percentage of each layer's selections per expert."""
    counts = results["load"]["counts"]
    shares = [[100 * count / sum(row) for count in row] for row in counts]
    axes.imshow(shares, cmap="Blues", vmin=0, aspect="auto")
    for layer, row in enumerate(shares):
        for expert, share in enumerate(row):
            axes.text(expert, layer, f"{share:.1f}", ha="center", va="center", fontsize=8)
    experts, layers = range(len(shares[0])), range(len(shares))
    axes.set(xlabel="expert", ylabel="layer", xticks=experts, yticks=layers)
    axes.set_xticklabels([str(expert + 1) for expert in experts])
    axes.set_yticklabels([str(layer + 1) for layer in layers])
    axes.set_title(f"percent of the choices (even: {100 / len(shares[0]):.1f})", fontsize=9)


def plot_acceptance(axes: Axes, results: Results) -> None:
    """Plot the percentage of draft tokens accepted, by position."""
    for (name, groups), colour in zip(results["acceptance"].items(), COLOURS, strict=False):
        values = [100 * share for share in groups["all"]["chain"]["cumulative"]]
        places = range(1, len(values) + 1)
        length = groups["all"]["chain"]["mean_accepted_length"]
        label = f"{name} ({length:.2f} tokens per step)"
        axes.plot(places, values, marker="o", color=colour, label=label)
        axes.set_xticks(places)
    axes.set(xlabel="drafted token", ylabel="accepted, %", ylim=(0, 100))
    axes.legend(fontsize=8)


DRAWN = {
    "tiers": (plot_tiers, ("small",)),
    "load": (plot_load, ("load",)),
    "acceptance": (plot_acceptance, ("acceptance",)),
}


def write_plots(results: Results, folder: Path) -> list[Path]:
    """Draw the plots that the results allow; deterministic."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pico"}):
        for name, (draw, needed) in DRAWN.items():
            if not all(results.get(topic) for topic in needed):
                continue
            figure, axes = pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")
            draw(axes, results)
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            pyplot.close(figure)
            written.append(path)
    return written


def main() -> None:
    """Draw the plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="where backend.pico.results wrote")
    parser.add_argument("--out", type=Path, default=PLOTS)
    options = parser.parse_args()
    results = {path.stem: json.loads(path.read_text()) for path in options.results.glob("*.json")}
    write_plots(results, options.out)


if __name__ == "__main__":
    run(main)
