"""Personal data: spans that are found where they are, by type and source, and texts that hold none."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.table import Table

from gateway.evaluation.guardrails.inputs import GuardrailsPlan, Row
from gateway.evaluation.guardrails.shares import percent, share
from gateway.evaluation.tables import new_table
from gateway.settings import SettingsError
from guardrails.checks.personal_data import names, patterns
from guardrails.checks.personal_data.names import finder_of
from guardrails.checks.personal_data.span import Span

Document = dict[str, Any]
KIND_OF = {
    "CREDIT_CARD": "card",
    "EMAIL_ADDRESS": "email",
    "IBAN_CODE": "iban",
    "IP_ADDRESS": "ip",
    "PHONE_NUMBER": "phone",
    "US_DRIVER_LICENSE": "driver_license",
    "US_SSN": "ssn",
    "ZIP_CODE": "address",
} | {kind.upper(): kind for kind in (*patterns.KINDS, *names.KINDS)}
"""By the types of the data. Other types are ignored: what is found there counts neither way."""
_COLUMNS = {"text", "source", "spans", "_place"}
_SAME = {"address": {"address", "location"}, "location": {"address", "location"}}
"""A city in an address is either."""


def measure(rows: list[Row], plan: GuardrailsPlan) -> Document:
    """Find what the rows hold. A row without `spans` holds none. Raises SettingsError, WeightsError."""
    finder = finder_of((*patterns.KINDS, *names.KINDS))
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    flagged: dict[str, list[bool]] = defaultdict(list)
    ignored: Counter[str] = Counter()
    began = time.process_time()
    for row in rows:
        if unknown := row.keys() - _COLUMNS:
            raise SettingsError(
                f"{row['_place']}: no evaluation has the columns {', '.join(sorted(unknown))}"
            )
        source, found = str(row["source"]), list(finder.spans(str(row["text"])))
        if "spans" not in row:
            flagged[source].append(bool(found))
            continue
        marked = [(span["start"], span["end"], str(span["type"])) for span in row["spans"]]
        own = [Span(start, end, KIND_OF[kind]) for start, end, kind in marked if kind in KIND_OF]
        other = [Span(start, end, kind) for start, end, kind in marked if kind not in KIND_OF]
        ignored.update(span.kind for span in other)
        for kind, outcome in _outcomes(own, other, found):
            for key in ((source, kind), (source, "all"), ("all", kind), ("all", "all")):
                counts[key][outcome] += 1
    took_s = time.process_time() - began
    return {
        "spans": [{"source": s, "kind": k} | _measured(count) for (s, k), count in sorted(counts.items())],
        "without": [{"source": source} | share(np.array(each)) for source, each in sorted(flagged.items())],
        "ignored_types": dict(sorted(ignored.items())),
        "us_per_kb": 1e6 * took_s / max(1, sum(len(str(row["text"])) for row in rows)) * 1024,
    }


def _outcomes(own: list[Span], other: list[Span], found: list[Span]) -> Iterator[tuple[str, str]]:
    """Kind and outcome of each span that is marked or found; what overlaps is the same."""
    for span in own:
        yield span.kind, "recalled" if _overlaps(span, found, _SAME.get(span.kind, {span.kind})) else "missed"
    for span in found:
        if _overlaps(span, own, _SAME.get(span.kind, {span.kind})):
            yield span.kind, "right"
        elif not _overlaps(span, other, None):
            yield span.kind, "wrong"


def _overlaps(span: Span, others: list[Span], kinds: set[str] | None) -> bool:
    return any(
        each.start < span.end and span.start < each.end and (kinds is None or each.kind in kinds)
        for each in others
    )


def _measured(count: Counter[str]) -> Document:
    num_marked, num_found = count["recalled"] + count["missed"], count["right"] + count["wrong"]
    recall, precision = count["recalled"] / max(1, num_marked), count["right"] / max(1, num_found)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"n": num_marked, "num_found": num_found, "f1": f1, "precision": precision, "recall": recall}


def tables(document: Document) -> Iterator[Table]:
    """For the terminal."""
    if document["spans"]:
        shown = new_table(
            "Personal data: spans that overlap, in %", "source, kind", "n", "F1", "precision", "recall"
        )
        for each in document["spans"]:
            values = (f"{100 * each[name]:.1f}" for name in ("f1", "precision", "recall"))
            shown.add_row(f"{each['source']}, {each['kind']}", str(each["n"]), *values)
        yield shown
    if document["without"]:
        shown = new_table("Personal data: texts without any that are flagged, in %", "source", "n", "flagged")
        for each in document["without"]:
            shown.add_row(each["source"], str(each["n"]), percent(each))
        yield shown
