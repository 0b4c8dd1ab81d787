"""Attacks on the prompt and harmful topics: recall, false positives, evasion, latency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, cast

import numpy as np
from rich.table import Table

from gateway.evaluation.guardrails import profile
from gateway.evaluation.guardrails.inputs import GuardrailsPlan, Row
from gateway.evaluation.guardrails.judging import Judged, judge, limit
from gateway.evaluation.guardrails.shares import area, detection, percent, share
from gateway.evaluation.tables import new_table
from gateway.settings import SettingsError
from guardrails.evasions import EVASIONS
from guardrails.findings import Segment

Document = dict[str, Any]
_HEADS = {"harmful_topic": "harmful_topic", "indirect": "indirect"}
MAX_EVADED_CHARS = 2_000
"""Longer attacks stay out of the matrix."""


def measure(rows: list[Row], plan: GuardrailsPlan) -> Document:
    """Judge all rows. Raises SettingsError."""
    judged = judge([(str(row["text"]), _segment(row)) for row in rows], plan)
    return {
        "false_positive_rate": plan.false_positive_rate,
        "detection": _detection(rows, judged, plan),
        "false_positives": _false_positives(rows, judged, plan),
        "evasions": _evasions(rows, plan) if plan.max_evaded else {},
        "profile": profile.measure(rows, judged, plan),
        "latency": _latency(judged),
    }


def _segment(row: Row) -> Segment:
    segment = row.get("segment") or "user"
    if segment not in ("system", "user", "tool", "document"):
        raise SettingsError(f"{row['_place']}: segment {segment!r} is not system, user, tool or document")
    return cast("Segment", segment)


def _head(kind: str, segment: Segment) -> str:
    """The head that answers for a kind of row."""
    if segment in ("tool", "document"):
        return "indirect"
    return _HEADS.get(kind, "attack")


def _detection(rows: Sequence[Row], judged: Sequence[Judged], plan: GuardrailsPlan) -> list[Document]:
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for row, each in zip(rows, judged, strict=True):
        if row["label"]:
            head = _head(row["kind"], _segment(row))
            for source in (str(row["source"]), "all"):
                groups.setdefault((str(row["kind"]), source, head), []).append(each)
    found = []
    for (kind, source, head), positive in sorted(groups.items()):
        negative = [each.value(head) for each in _ordinary(rows, judged, head)]
        measured = detection([each.value(head) for each in positive], negative, limit(head, plan))
        measured["patterns"] = share(np.array([bool(each.patterns) for each in positive]))
        found.append({"kind": kind, "source": source, "head": head} | measured)
    return found


def _ordinary(rows: Sequence[Row], judged: Sequence[Judged], head: str) -> Iterator[Judged]:
    """Texts that are neither attacks nor look like ones, from the segments that a head judges."""
    for row, each in zip(rows, judged, strict=True):
        if row["kind"] == "benign" and (head == "indirect") == (_segment(row) in ("tool", "document")):
            yield each


def _false_positives(rows: Sequence[Row], judged: Sequence[Judged], plan: GuardrailsPlan) -> list[Document]:
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for row, each in zip(rows, judged, strict=True):
        if not row["label"]:
            key = (str(row["kind"]), _segment(row))
            for source in (str(row["source"]), "all"):
                groups.setdefault((*key, source), []).append(each)
    found = []
    for (kind, segment, source), negative in sorted(groups.items()):
        heads = ["indirect"] if segment in ("tool", "document") else ["attack", "harmful_topic", "toxicity"]
        flagged = {
            head: share(np.array([each.value(head) >= limit(head, plan) for each in negative]))
            for head in heads
        }
        found.append({"kind": kind, "segment": segment, "source": source, "flagged": flagged})
    return found


def _evasions(rows: Sequence[Row], plan: GuardrailsPlan) -> Document:
    """Share of attacks flagged as written, and after each change."""
    found: Document = {}
    draw = Random(0)
    for kind in sorted({str(row["kind"]) for row in rows if row["label"]}):
        of_kind = [row for row in rows if row["label"] and row["kind"] == kind]
        short = [row for row in of_kind if len(str(row["text"])) <= MAX_EVADED_CHARS]
        chosen = draw.sample(short, min(plan.max_evaded, len(short)))
        if not chosen:
            continue
        changes = {"as written": _unchanged} | EVASIONS
        texts = [
            (change(draw, str(row["text"])), _segment(row)) for change in changes.values() for row in chosen
        ]
        heads = [_head(kind, _segment(row)) for row in chosen]
        judged = judge(texts, plan)
        flagged = [
            each.value(head) >= limit(head, plan)
            for each, head in zip(judged, heads * len(changes), strict=True)
        ]
        for number, name in enumerate(changes):
            hits = flagged[number * len(chosen) : (number + 1) * len(chosen)]
            found.setdefault(name, {})[kind] = share(np.array(hits))
    return found


def _unchanged(draw: Random, text: str) -> str:
    return text


def _latency(judged: Sequence[Judged]) -> Document:
    """Milliseconds beside the encoder's, by length."""
    found = {}
    for name, low, high in (("up to 500", 0, 500), ("to 4,000", 500, 4_000), ("longer", 4_000, 10**9)):
        chosen = [each for each in judged if low < each.num_chars <= high]
        if chosen:
            patterns = np.array([1e3 * each.patterns_s for each in chosen])
            scores = np.array([1e3 * each.classifier_s for each in chosen])
            per_kb = np.array([1e6 * each.patterns_s / each.num_chars * 1024 for each in chosen])
            found[name] = {
                "n": len(chosen),
                "patterns_ms": [float(value) for value in np.percentile(patterns, (50, 99))],
                "patterns_us_per_kb": float(np.median(per_kb)),
                "classifier_ms": [float(value) for value in np.percentile(scores, (50, 99))],
            }
    return found


def tables(document: Document) -> Iterator[Table]:
    """For the terminal."""
    rate = 100 * document["false_positive_rate"]
    shown = new_table(
        "Attacks: recall in %, 95 % intervals in brackets",
        "kind, source", "n", "AUROC", "at 1 % FPR", "at 0.1 %", f"shipped ({rate:g} %)", "patterns",
    )  # fmt: skip
    for each in document["detection"]:
        shown.add_row(
            f"{each['kind']}, {each['source']}", str(each["n"]), area(each), percent(each["recall_at_0.01"]),
            percent(each["recall_at_0.001"]), percent(each["recall_shipped"]), percent(each["patterns"]),
        )  # fmt: skip
    yield shown
    shown = new_table(
        f"Harmless texts flagged at the shipped thresholds for {rate:g} %, %", "kind, source", "n", "flagged"
    )
    for each in document["false_positives"]:
        for head, flagged in each["flagged"].items():
            name = f"{each['kind']} {each['segment']}, {each['source']}: {head}"
            shown.add_row(name, str(flagged["n"]), percent(flagged))
    yield shown
    if document["evasions"]:
        kinds = list(document["evasions"]["as written"])
        shown = new_table("Attacks flagged after changes, %", "change", *kinds)
        for name, found in document["evasions"].items():
            shown.add_row(name, *(percent(found.get(kind)) for kind in kinds))
        yield shown
    yield from profile.tables(document["profile"], rate)
    yield _latency_table(document["latency"])


def _latency_table(latency: Document) -> Table:
    shown = new_table(
        "Latency beside the encoder, ms p50 / p99", "characters", "n", "patterns", "µs per KB", "classifier"
    )
    for name, each in latency.items():
        patterns, scores = (
            " / ".join(f"{value:.2f}" for value in each[f"{part}_ms"]) for part in ("patterns", "classifier")
        )
        shown.add_row(name, str(each["n"]), patterns, f"{each['patterns_us_per_kb']:.0f}", scores)
    return shown
