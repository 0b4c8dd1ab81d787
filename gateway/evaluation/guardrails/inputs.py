"""The flags of `penstock eval guardrails`, and the rows that are measured."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.classifiers import training_files
from backend.classifiers.training_files import RowsError, read_rows
from backend.encoder.chosen import chosen_encoder
from gateway.evaluation.encoder_flags import OfflinePlan, add_encoder_flags, read_threads
from gateway.evaluation.outputs import add_output_flags, read_outputs
from gateway.settings import SettingsError
from guardrails.checks.classifier import WEIGHTS

Row = dict[str, Any]
_TEXTS = {"text", "context", "claim"}
_NAMES = {"kind", "category", "segment", "source"}
_LABELS = {"label", "supported"}
DESCRIPTION = """
Measures the guardrails on JSON lines, plain or gzip; the columns of a file tell what it is about.
Attacks: `text`, `label` (0 or 1), `kind` (benign, benign_trigger, injection, jailbreak, extraction,
indirect, harmful_topic), `segment` (user, tool, document). Toxicity: `text`, `label`, `category`.
Groundedness: `context`, `claim`, `supported`, perhaps `document_id`. Personal data: `text`, perhaps
`spans` (`start`, `end`, `type`; none: no personal data). `source` is optional; each is reported apart.
Thresholds are the shipped ones, and those at which 1 % and 0.1 % of the ordinary texts of the files are
flagged.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailsPlan(OfflinePlan):
    """What to measure."""

    rows: tuple[Row, ...]
    false_positive_rate: float  # of the shipped thresholds
    max_evaded: int
    weights: Path


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
    add_output_flags(parser, "everything that was measured")


def read_plan(options: argparse.Namespace) -> GuardrailsPlan:
    """Read and check the files. Raises SettingsError."""
    if not 0 < options.false_positive_rate < 1:
        raise SettingsError(f"--false-positive-rate {options.false_positive_rate} must be between 0 and 1")
    num_threads, outputs = read_threads(options), read_outputs(options)
    for flag, value in (("--max-per-source", options.max_per_source), ("--evasions", options.evasions)):
        if value is not None and value < 0:
            raise SettingsError(f"{flag} {value} must be 0 or more")
    try:
        rows = [
            {"source": path.name, **_checked(row), "_place": row.place}
            for path in options.data
            for row in read_rows(path)
        ]
    except RowsError as error:
        raise SettingsError(str(error)) from None
    kept = _capped(rows, options.max_per_source) if options.max_per_source else rows
    return GuardrailsPlan(
        rows=tuple(kept),
        false_positive_rate=options.false_positive_rate,
        num_threads=num_threads,
        max_evaded=options.evasions,
        weights=options.weights,
        outputs=outputs,
        encoder=chosen_encoder(options),
    )


def _checked(row: training_files.Row) -> training_files.Row:
    """The row, if its columns have the types that they are read as. Raises RowsError."""
    for name, value in row.items():
        if name in _TEXTS and not isinstance(value, str):
            raise RowsError(f"{row.place}: column {name!r} is {value!r:.40}; it must be a text")
        if name in _NAMES and not isinstance(value, str | None):
            raise RowsError(f"{row.place}: column {name!r} is {value!r:.40}; it must be a name")
        if name in _LABELS and value not in (0, 1):
            raise RowsError(f"{row.place}: column {name!r} is {value!r:.40}; it must be 0, 1, true or false")
    spans = row.get("spans", [])
    if not isinstance(spans, list) or not all(map(_is_span, spans)):
        raise RowsError(f"{row.place}: column 'spans' must be a list of objects with start, end and type")
    return row


def _is_span(span: object) -> bool:
    return (
        isinstance(span, dict)
        and isinstance(span.get("start"), int)
        and isinstance(span.get("end"), int)
        and isinstance(span.get("type"), str)
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
