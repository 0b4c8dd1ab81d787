"""Groundedness: claims that their context supports, and others; beside plain word overlap."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from backend.heads.measures import auc
from gateway.cli.evaluation.guardrails.inputs import Plan, Row
from gateway.cli.evaluation.guardrails.shares import area, table
from guardrails.checks.groundedness import FEATURES, SUPPORTING, Documents
from policies.guardrails import GroundednessRules

Document = dict[str, Any]
Array = NDArray[np.float64]
NUM_RESAMPLES = 400


def measure(rows: list[Row], plan: Plan) -> Document:
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
    passes = support >= GroundednessRules().min_support
    right = [
        float((passes == labels)[labels == label].mean())
        for label in (True, False)
        if (labels == label).any()
    ]
    return {
        "n": len(labels),
        "auroc": auc(support, labels),
        "auroc_interval": _interval(support, labels, clusters),
        "overlap_auroc": auc(overlap, labels),
        "balanced_accuracy": float(np.mean(right)),
        "supported_flagged": None if not labels.any() else float((~passes)[labels].mean()),
    }


def _interval(
    support: Array, labels: NDArray[np.bool_], clusters: NDArray[np.str_]
) -> Sequence[float] | None:
    """95 %, by drawing whole documents: the claims about one are not independent."""
    members = [np.flatnonzero(clusters == cluster) for cluster in sorted(set(clusters))]
    draw = np.random.default_rng(0)
    areas = []
    for _ in range(NUM_RESAMPLES):
        rows = np.concatenate([members[i] for i in draw.integers(0, len(members), len(members))])
        found = auc(support[rows], labels[rows])
        areas += [] if found is None else [found]
    return None if not areas else [float(value) for value in np.percentile(areas, (2.5, 97.5))]


def tables(document: Document) -> Iterator[Table]:
    """For the terminal."""
    shown = table(
        f"Groundedness, unsupported below {document['min_support']:g}, "
        f"{document['ms_per_claim']:.2f} ms per claim; 95 % intervals over documents in brackets",
        "source", "n", "AUROC", "word overlap", "balanced accuracy", "supported, flagged (%)",
    )  # fmt: skip
    for each in document["sources"]:
        flagged = each["supported_flagged"]
        shown.add_row(
            each["source"],
            str(each["n"]),
            area(each),
            "–" if each["overlap_auroc"] is None else f"{each['overlap_auroc']:.3f}",
            f"{each['balanced_accuracy']:.3f}",
            "–" if flagged is None else f"{100 * flagged:.1f}",
        )
    yield shown
