"""`python -m guardrails.train.groundedness FILE...`: the weights of guardrails/checks/groundedness.py.

An untrained rule (how many words are covered, less what contradicts) counts twice as much as what is fitted
on labelled claims: fitted features alone learn how one corpus edits its claims, and lose to plain word
overlap elsewhere. Only sources in SHIPPED teach the weights.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.training_files import read_rows, run
from guardrails.checks.groundedness import FEATURES, WEIGHTS, Documents

SHIPPED = ("summedits",)
"""Prefixes of sources whose licence lets a weight trained on them ship (SummEdits: Apache-2.0)."""

RULE = {"covered": 1 / 3, "covered_by_one": 1 / 3, "covered_by_three": 1 / 3}
RULE |= {"missing_number": 0.25, "missing_names": 0.5, "negation": 0.15}
FITTED_SHARE = 0.5
PENALTY = 10.0
SOURCE_WEIGHT = 200.0
STEPS = 3000
Array = NDArray[np.float64]


def features(rows: Sequence[Mapping[str, Any]]) -> Array:
    """(rows, features) of the claims, each against its own context."""
    documents: dict[str, Documents] = defaultdict()
    for row in rows:
        if row["context"] not in documents:
            documents[row["context"]] = Documents([row["context"]])
    return np.array([documents[row["context"]].features(row["claim"]) for row in rows])


def fit(inputs: Array, labels: NDArray[np.bool_], weights: Array) -> Array:
    """Logistic regression with coefficients that are not negative: projected gradient descent.

    Returns the coefficients; the bias is the last.
    """
    x = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    coefficients = np.zeros(x.shape[1])
    penalty = np.append(np.full(inputs.shape[1], PENALTY), 1e-6)
    rate = 1.0 / (0.25 * np.linalg.eigvalsh((x * weights[:, None]).T @ x)[-1] + PENALTY)
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-(x @ coefficients)))
        coefficients -= rate * (x.T @ (weights * (p - labels)) + penalty * coefficients)
        coefficients[:-1] = np.maximum(coefficients[:-1], 0)
    return coefficients


def train(inputs: Array, labels: NDArray[np.bool_], sources: NDArray[np.str_]) -> tuple[Array, float]:
    """Weights of FEATURES and the bias; each source and label counts the same."""
    counts = np.zeros(len(labels))
    for source in set(sources):
        for label in (True, False):
            rows = (sources == source) & (labels == label)
            counts[rows] = SOURCE_WEIGHT / max(1, int(rows.sum()))
    scale = inputs.std(0) + 1e-6
    fitted = fit((inputs - inputs.mean(0)) / scale, labels, counts)[:-1] / scale
    rule = np.array([RULE.get(name, 0.0) for name in FEATURES])
    both = FITTED_SHARE * fitted / (inputs @ fitted).std() + rule / (inputs @ rule).std()
    slope, bias = fit((inputs @ both)[:, None], labels, counts)
    return both * slope, float(bias)


def main() -> None:
    """Write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files", type=Path, nargs="+", help="JSON lines with `context`, `claim`, `supported` and `source`"
    )
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--leave-out", action="append", default=[], help="a source, to measure on it")
    arguments = parser.parse_args()
    rows = [
        row
        for path in arguments.files
        for row in read_rows(path)
        if row["source"].startswith(SHIPPED) and row["source"] not in arguments.leave_out
    ]
    labels = np.array([row["supported"] for row in rows])
    weights, bias = train(features(rows), labels, np.array([row["source"] for row in rows]))
    document = {
        "sources": sorted({row["source"] for row in rows}),
        "num_claims": len(rows),
        "weights": {name: round(float(weight), 4) for name, weight in zip(FEATURES, weights, strict=True)},
        "bias": round(bias, 4),
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    run(main)
