"""Quality gate: `python -m backend.pico.gate` measures the shipped models on a fixed subset of questions.

It fails if a figure is more than two points below the one recorded in weights/gate.json; `--record` rewrites
that file.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backend.classifiers.training_files import run
from backend.pico.gate_measures import Figures, measure
from backend.pico.recipe import WEIGHTS

LOG = logging.getLogger("backend.pico.gate")
MAX_DROP_POINTS = 2.0
RECORD = "gate.json"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure, recorded and measured, in percent; None if missing."""

    model: str
    figure: str
    recorded: float | None
    measured: float | None

    @property
    def is_kept(self) -> bool:
        """True if the model is as good as recorded; False if the figure was not recorded or not measured."""
        if self.recorded is None or self.measured is None:
            return False
        return self.measured >= self.recorded - MAX_DROP_POINTS


def compare(recorded: Figures, measured: Figures) -> list[Comparison]:
    """Compare all figures of either side."""
    places = dict.fromkeys(
        (model, figure) for figures in (recorded, measured) for model in figures for figure in figures[model]
    )
    return [
        Comparison(model, figure, recorded.get(model, {}).get(figure), measured.get(model, {}).get(figure))
        for model, figure in places
    ]


def table(comparisons: list[Comparison]) -> str:
    """Return a Markdown table."""
    lines = ["| model | figure | recorded | measured | |", "|---|---|---|---|---|"]
    for found in comparisons:
        verdict = "ok" if found.is_kept else "**worse**"
        if found.recorded is None:
            verdict = "**not recorded**"
        elif found.measured is None:
            verdict = "**missing**"
        cells = (_show(found.recorded), _show(found.measured))
        lines.append(f"| {found.model} | {found.figure} | {' | '.join(cells)} | {verdict} |")
    return "\n".join(lines) + "\n"


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def read_record(path: Path) -> Figures:
    """Read the recorded figures; {} if there is no file."""
    found: Figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write_record(path: Path, figures: Mapping[str, Mapping[str, float]]) -> None:
    """Write the recorded figures."""
    rounded = {
        model: {figure: round(value, 2) for figure, value in found.items()}
        for model, found in figures.items()
    }
    path.write_text(json.dumps(rounded, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Measure, and compare or record. Returns the exit code: 1 if a model is worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the family's members")
    parser.add_argument("--record", action="store_true", help="record what is measured instead of comparing")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    started, cpu_started = time.perf_counter(), time.process_time()
    measured = measure(options.weights)
    LOG.info("%.0f s, %.0f s of CPU", time.perf_counter() - started, time.process_time() - cpu_started)
    if options.record:
        write_record(options.weights / RECORD, measured)
    comparisons = compare(read_record(options.weights / RECORD), measured)
    sys.stdout.write(table(comparisons))
    return 0 if all(found.is_kept for found in comparisons) else 1


if __name__ == "__main__":
    run(main)
