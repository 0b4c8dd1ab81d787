"""`penstock eval guardrails`: gives each file to the kind of evaluation that its columns name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.evaluation.guardrails import attacks, groundedness, personal_data, toxicity
from gateway.evaluation.guardrails.inputs import GuardrailsPlan, Row
from gateway.settings import SettingsError

EXIT_FAILED = 1
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """An evaluation: the columns of its rows, what it measures, how that is shown."""

    columns: frozenset[str]
    measure: Callable[[list[Row], GuardrailsPlan], Document]
    tables: Callable[[Document], Iterable[Table]]


KINDS: dict[str, Kind] = {
    "attacks": Kind(frozenset(("text", "label", "kind")), attacks.measure, attacks.tables),
    "toxicity": Kind(frozenset(("text", "label", "category")), toxicity.measure, toxicity.tables),
    "groundedness": Kind(
        frozenset(("context", "claim", "supported")), groundedness.measure, groundedness.tables
    ),
    "personal_data": Kind(frozenset(("text", "source")), personal_data.measure, personal_data.tables),
}
"""The first whose columns a row has takes it."""


def evaluate_guardrails(plan: GuardrailsPlan) -> int:
    """Measure, print, write the file; returns the exit code. Raises SettingsError, WeightsError."""
    rows: dict[str, list[Row]] = {name: [] for name in KINDS}
    for row in plan.rows:
        rows[_kind_of(row)].append(row)
    document = {name: KINDS[name].measure(found, plan) for name, found in rows.items() if found}
    is_written = plan.outputs.write(document)
    console = Console()
    for name, measured in document.items():
        console.print(*KINDS[name].tables(measured))
    return 0 if is_written else EXIT_FAILED


def _kind_of(row: Row) -> str:
    for name, kind in KINDS.items():
        if kind.columns <= row.keys():
            return name
    expected = "; ".join(", ".join(sorted(kind.columns)) for kind in KINDS.values())
    found = ", ".join(sorted(row.keys() - {"_place"}))
    raise SettingsError(f"{row['_place']}: no evaluation has the columns {found}; there are: {expected}")
