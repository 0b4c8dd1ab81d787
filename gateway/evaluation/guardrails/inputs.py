"""The flags of `penstock eval guardrails`, and the rows that are measured."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.classifiers.training_files import RowsError, read_rows
from backend.encoder.chosen import SHIPPED, ChosenEncoder, add_encoder_flags, chosen_encoder
from gateway.settings import SettingsError
from guardrails.checks.classifier import WEIGHTS

Row = dict[str, Any]
DESCRIPTION = """
Measures the guardrails on JSON lines, plain or gzip; the columns of a file tell what it is about.
Attacks: `text`, `label` (0 or 1), `kind` (benign, benign_trigger, injection, jailbreak, extraction,
indirect, harmful_topic), `segment` (user, tool, document). Toxicity: `text`, `label`, `category`.
Groundedness: `context`, `claim`, `supported`, perhaps `document_id`. Personal data: `text`, perhaps
`spans` (`start`, `end`, `type`; none: no personal data). `source` is optional; each is reported apart.
Thresholds are the shipped ones, and those at which 1 % and 0.1 % of the ordinary texts of the files are
flagged.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    rows: tuple[Row, ...]
    false_positive_rate: float  # of the shipped thresholds
    num_threads: int | None
    max_evaded: int
    weights: Path
    json_path: Path | None
    encoder: ChosenEncoder = SHIPPED


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags and the description."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add("--data", type=Path, nargs="+", required=True, metavar="FILE", help="JSON lines or .gz")
    add(
        "--false-positive-rate",
        type=float,
        default=0.005,
        metavar="RATE",
        help="choose the shipped thresholds for this share of ordinary texts flagged, default 0.005",
    )
    add("--max-per-source", type=int, metavar="N", help="rows of each source, kind and segment, default all")
    add(
        "--evasions",
        type=int,
        default=40,
        metavar="N",
        help="attacks of a kind in the matrix, default 40; 0: none",
    )
    add("--weights", type=Path, default=WEIGHTS, help="of the classifier, default the shipped ones")
    add_encoder_flags(parser)
    add("--threads", type=int, help="of the encoder; default: one per core")
    add("--json", type=Path, metavar="OUT", help="write everything that was measured")


def read_plan(options: argparse.Namespace) -> Plan:
    """Read and check the files. Raises SettingsError."""
    if not 0 < options.false_positive_rate < 1:
        raise SettingsError(f"--false-positive-rate {options.false_positive_rate} must be between 0 and 1")
    try:
        rows = [
            {"source": path.name, **row, "_place": row.place}
            for path in options.data
            for row in read_rows(path)
        ]
    except RowsError as error:
        raise SettingsError(str(error)) from None
    kept = _capped(rows, options.max_per_source) if options.max_per_source else rows
    return Plan(
        rows=tuple(kept),
        false_positive_rate=options.false_positive_rate,
        num_threads=options.threads,
        max_evaded=max(0, options.evasions),
        weights=options.weights,
        json_path=options.json,
        encoder=chosen_encoder(options),
    )


def _capped(rows: list[Row], count: int) -> list[Row]:
    """The first rows of each source, kind and segment."""
    seen: dict[tuple[Any, ...], int] = {}
    kept = []
    for row in rows:
        key = (row["source"], *(row.get(name) for name in ("kind", "category", "segment", "label")))
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= count:
            kept.append(row)
    return kept
