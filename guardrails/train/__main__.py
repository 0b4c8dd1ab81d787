"""Trains the classifier: `python -m guardrails.train --data DIR --vectors DIR`; see guardrails/REPORT.md."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backend.heads.weights import write_weights
from guardrails.checks.classifier import FALSE_POSITIVE_RATES, HEADS, WEIGHTS, Classifier
from guardrails.train.bags import Array, Bags, make_bags
from guardrails.train.model import Settings, fit, tensors_of
from guardrails.train.rows import SHIPPABLE, Row, read_rows

LOG = logging.getLogger("guardrails.train")
FILES = [f"{name}.{part}.jsonl.gz" for name in ("injection", "toxicity") for part in ("train", "dev")]
MAX_PER_SOURCE = 400
"""Ordinary texts of a source that thresholds are chosen on."""


def thresholds(rows: Sequence[Row], logits: Array) -> Array:
    """[H, R]: the score that a share of ordinary texts reaches, each source counted alike."""
    found = np.full((len(HEADS), len(FALSE_POSITIVE_RATES)), 0.5, np.float32)
    for number, head in enumerate(HEADS):
        chosen = [
            i
            for i, row in enumerate(rows)
            if row.is_ordinary and (head == "indirect") == (row.segment in ("tool", "document"))
        ]
        values = _balanced([(rows[i].source, float(logits[i, number])) for i in chosen])
        found[number] = [1 / (1 + np.exp(-np.quantile(values, 1 - rate))) for rate in FALSE_POSITIVE_RATES]
    return found


def _balanced(values: Sequence[tuple[str, float]]) -> list[float]:
    seen: Counter[str] = Counter()
    kept = []
    for source, value in values:
        seen[source] += 1
        if seen[source] <= MAX_PER_SOURCE:
            kept.append(value)
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, choose thresholds, write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the JSON lines")
    parser.add_argument("--vectors", type=Path, required=True, help="folder that keeps vectors between runs")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="weights file, default the shipped one")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    rows = [row for row in read_rows(options.data / name for name in FILES) if row.source in SHIPPABLE]
    LOG.info("%d rows", len(rows))
    bags: Bags = make_bags(rows, options.vectors)
    tensors = tensors_of(fit(bags, Settings()))
    tensors["thresholds"] = thresholds(rows, bags.logits(Classifier.of(tensors)))
    trained_on = dict(sorted(Counter(row.source for row in rows).items()))
    write_weights(options.out, tensors, {"heads": HEADS, "trained_on": trained_on})


if __name__ == "__main__":
    main()
