"""Groundedness: claims that their context supports, and others; beside plain word overlap."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from backend.classifiers.measures import auc
from gateway.evaluation.guardrails.inputs import GuardrailsPlan, Row
from gateway.evaluation.guardrails.shares import area
from gateway.evaluation.tables import new_table
from guardrails.checks.groundedness import FEATURES, SUPPORTING, Documents
from policies.guardrails import GroundednessRules

Document = dict[str, Any]
Array = NDArray[np.float64]
NUM_RESAMPLES = 400


def measure(rows: list[Row], plan: GuardrailsPlan) -> Document:
    """Judge all rows."""
    documents: dict[str, Documents] = {}
    support, overlap = np.zeros(len(rows)), np.zeros(len(rows))
    chosen = [FEATURES.index(name) for name in SUPPORTING]
    began = time.perf_counter()
    for number, row in enumerate(rows):
        context = str(row["context"])
        if context not in documents:
            documents[context] = Documents([context])
        support[number] = documents[context].support(str(row["claim"]))
        overlap[number] = documents[context].features(str(row["claim"]))[chosen].mean()
    took_s = time.perf_counter() - began
    labels = np.array([bool(row["supported"]) for row in rows])
    clusters = np.array([str(row.get("document_id", number)) for number, row in enumerate(rows)])
    sources = np.array([str(row["source"]) for row in rows])
    found = [
        {"source": source} | _measured(support[own], overlap[own], labels[own], clusters[own])
        for source in sorted(set(sources))
        for own in [sources == source]
    ]
    areas = [each["auroc"] for each in found if each["auroc"] is not None]
    return {
        "min_support": GroundednessRules().min_support,
        "sources": found,
        "mean_auroc": float(np.mean(areas)) if areas else None,
        "ms_per_claim": 1e3 * took_s / len(rows),
    }


def _measured(
    support: Array, overlap: Array, labels: NDArray[np.bool_], clusters: NDArray[np.str_]
) -> Document:
    least = GroundednessRules().min_support
    passes = support >= least
    return {
        "n": len(labels),
        "auroc": auc(support, labels),
        "auroc_interval": _interval([support], labels, clusters),
        "overlap_auroc": auc(overlap, labels),
        "gain_interval": _interval([support, overlap], labels, clusters),
        "balanced_accuracy": _balanced_accuracy(passes, labels),
        "overlap_balanced_accuracy": _balanced_accuracy(overlap >= least, labels),
        "supported_flagged": None if not labels.any() else float((~passes)[labels].mean()),
    }


def _balanced_accuracy(passes: NDArray[np.bool_], labels: NDArray[np.bool_]) -> float:
    right = [(passes == labels)[labels == label].mean() for label in (True, False) if (labels == label).any()]
    return float(np.mean(right))


def _interval(
    scores: Sequence[Array], labels: NDArray[np.bool_], clusters: NDArray[np.str_]
) -> Sequence[float] | None:
    """95 % of the area of one score, or of what one has more than another, by drawing whole documents.

    The claims about one document are not independent.
    """
    members = [np.flatnonzero(clusters == cluster) for cluster in sorted(set(clusters))]
    draw = np.random.default_rng(0)
    areas = []
    for _ in range(NUM_RESAMPLES):
        rows = np.concatenate([members[i] for i in draw.integers(0, len(members), len(members))])
        found = [auc(score[rows], labels[rows]) for score in scores]
        known = [area for area in found if area is not None]
        areas += [known[0] - sum(known[1:])] if len(known) == len(scores) else []
    return None if not areas else [float(value) for value in np.percentile(areas, (2.5, 97.5))]


def tables(document: Document) -> Iterator[Table]:
    """For the terminal."""
    shown = new_table(
        f"Groundedness, unsupported below {document['min_support']:g}, "
        f"{document['ms_per_claim']:.2f} ms per claim; 95 % intervals over documents in brackets",
        "source", "n", "AUROC", "word overlap", "gain", "balanced accuracy", "overlap",
        "supported, flagged (%)",
    )  # fmt: skip
    for each in document["sources"]:
        flagged, gain = each["supported_flagged"], each["gain_interval"]
        shown.add_row(
            each["source"],
            str(each["n"]),
            area(each),
            "–" if each["overlap_auroc"] is None else f"{each['overlap_auroc']:.3f}",
            "–" if gain is None else f"{gain[0]:+.3f} to {gain[1]:+.3f}",
            f"{each['balanced_accuracy']:.3f}",
            f"{each['overlap_balanced_accuracy']:.3f}",
            "–" if flagged is None else f"{100 * flagged:.1f}",
        )
    yield shown
