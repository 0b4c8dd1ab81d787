"""A strict profile, injection and harm together: what it refuses and finds, by kind and by language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from gateway.evaluation.guardrails.inputs import GuardrailsPlan, Row
from gateway.evaluation.guardrails.judging import Judged, limit
from gateway.evaluation.guardrails.shares import percent, share
from gateway.evaluation.tables import new_table

Document = dict[str, Any]
_HARM = ("harmful_topic", "toxicity")
_HEADS = ("attack", "indirect", *_HARM)


def measure(rows: Sequence[Row], judged: Sequence[Judged], plan: GuardrailsPlan) -> Document:
    """Shares of the texts that either check flags."""
    limits = {head: limit(head, plan) for head in _HEADS}
    groups: dict[tuple[str, str], list[Judged]] = {}
    languages: dict[str, dict[str, list[Judged]]] = {}
    for row, each in zip(rows, judged, strict=True):
        for source in (str(row["source"]), "all"):
            groups.setdefault((str(row["kind"]), source), []).append(each)
        what = "harmless" if not row["label"] else "harm" if row["kind"] == "harmful_topic" else "attacks"
        languages.setdefault(each.language, {}).setdefault(what, []).append(each)
    return {
        "kinds": [
            {"kind": kind, "source": source, "flagged": _flagged(found, limits, _HEADS)}
            for (kind, source), found in sorted(groups.items())
        ],
        "languages": [
            {
                "language": name,
                "unreadable": share(
                    np.array([each.is_unreadable for group in of.values() for each in group])
                ),
                "harmless": _flagged(of.get("harmless", []), limits, _HEADS),
                "attacks": _flagged(of.get("attacks", []), limits, ("attack", "indirect")),
                "harm": _flagged(of.get("harm", []), limits, _HARM),
            }
            for name, of in sorted(languages.items())
        ],
    }


def _flagged(judged: Sequence[Judged], limits: dict[str, float], heads: Sequence[str]) -> Document:
    return share(np.array([any(each.value(head) >= limits[head] for head in heads) for each in judged], bool))


def tables(document: Document, rate: float) -> Iterator[Table]:
    """For the terminal."""
    shown = new_table(
        f"Injection and harm together at {rate:g} %: flagged, %", "kind, source", "n", "flagged"
    )
    for each in document["kinds"]:
        flagged = each["flagged"]
        shown.add_row(f"{each['kind']}, {each['source']}", str(flagged["n"]), percent(flagged))
    yield shown
    shown = new_table(
        "By language, %", "language", "harmless", "refused", "attacks found", "harmful requests found",
        "unreadable",
    )  # fmt: skip
    for each in document["languages"]:
        names = ("harmless", "attacks", "harm", "unreadable")
        shown.add_row(each["language"], str(each["harmless"]["n"]), *(percent(each[name]) for name in names))
    yield shown
