"""Toxicity: each source's toxic texts against its own harmless ones, by category."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.table import Table

from gateway.evaluation.guardrails.inputs import GuardrailsPlan, Row
from gateway.evaluation.guardrails.judging import Judged, judge, limit
from gateway.evaluation.guardrails.shares import area, detection, percent, share
from gateway.evaluation.tables import new_table

Document = dict[str, Any]
HEAD = "toxicity"


def measure(rows: list[Row], plan: GuardrailsPlan) -> Document:
    """Judge all rows."""
    judged = judge([(str(row["text"]), "user") for row in rows], plan)
    found = []
    for source in sorted({str(row["source"]) for row in rows}):
        own = [(row, each) for row, each in zip(rows, judged, strict=True) if row["source"] == source]
        negative = [each for row, each in own if not row["label"]]
        for category in sorted({str(row["category"]) for row, _ in own if row["label"]} | {"all"}):
            positive = [
                each for row, each in own if row["label"] and category in ("all", str(row["category"]))
            ]
            if positive:
                found.append({"source": source, "category": category} | _measured(positive, negative, plan))
    return {"false_positive_rate": plan.false_positive_rate, "detection": found}


def _measured(positive: list[Judged], negative: list[Judged], plan: GuardrailsPlan) -> Document:
    shipped = limit(HEAD, plan)
    values = [each.value(HEAD) for each in negative]
    measured = detection([each.value(HEAD) for each in positive], values, shipped)
    return measured | {"flagged_harmless": share(np.array(values) >= shipped)}


def tables(document: Document) -> Iterator[Table]:
    """For the terminal."""
    rate = 100 * document["false_positive_rate"]
    shown = new_table(
        "Toxicity: recall in %, 95 % intervals in brackets",
        "source, category", "n", "AUROC", "at 1 % FPR", f"shipped ({rate:g} %)", "harmless flagged",
    )  # fmt: skip
    for each in document["detection"]:
        shown.add_row(
            f"{each['source']}, {each['category']}",
            str(each["n"]),
            area(each),
            *(percent(each[name]) for name in ("recall_at_0.01", "recall_shipped", "flagged_harmless")),
        )
    yield shown
