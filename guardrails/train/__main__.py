"""Trains the classifier: `python -m guardrails.train --data DIR --vectors DIR`; see guardrails/REPORT.md."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Sequence, Set
from pathlib import Path

import numpy as np
import torch

from backend.encoder.chosen import parse_with_encoder
from backend.heads.weights import Tensor, write_weights
from guardrails.checks.classifier import FALSE_POSITIVE_RATES, HEADS, WEIGHTS, Classifier
from guardrails.train.bags import Array, Bags, make_bags
from guardrails.train.model import Settings, fit, tensors_of
from guardrails.train.own import attacked_documents, own_rows
from guardrails.train.rows import SHIPPABLE, Row, read_rows

LOG = logging.getLogger("guardrails.train")
FILES = [f"{name}.{part}.jsonl.gz" for name in ("injection", "toxicity") for part in ("train", "dev")]
FOLDS = (("t0", "clinc", "stsb-multi"), ("mmlu", "banking77", "bipia"), ("dcrouter", "qqp", "own"))
"""Sources of ordinary texts that are left out together, for the thresholds."""
MAX_PER_SOURCE = 400
"""Ordinary texts of a source that thresholds are chosen on."""


def train(rows: Sequence[Row], bags: Bags, taught: Set[str], settings: Settings) -> dict[str, Tensor]:
    """The tensors, from the sources `taught`; thresholds from texts of sources that were left out."""
    shippable = [number for number, row in enumerate(rows) if row.source in taught]
    kept: list[Row] = []
    parts: list[Array] = []
    for fold in FOLDS:
        rest = [number for number in shippable if rows[number].source not in fold]
        classifier = Classifier.of(tensors_of(fit(bags.of(rest), settings)))
        for source in fold:
            of_source = [n for n, row in enumerate(rows) if row.source == source and row.is_ordinary]
            kept += [rows[number] for number in of_source[:MAX_PER_SOURCE]]
            parts.append(bags.of(of_source[:MAX_PER_SOURCE]).logits(classifier))
        LOG.info("thresholds without %s", ", ".join(fold))
    tensors = tensors_of(fit(bags.of(shippable), settings))
    return tensors | {"thresholds": thresholds(kept, np.concatenate(parts))}


def thresholds(rows: Sequence[Row], logits: Array) -> Array:
    """[H, R]: the score that a share of the ordinary texts of a head's segments reaches."""
    is_document = np.array([row.segment in ("tool", "document") for row in rows])
    found = np.zeros((len(HEADS), len(FALSE_POSITIVE_RATES)), np.float32)
    for number, head in enumerate(HEADS):
        values = logits[is_document if head == "indirect" else ~is_document, number]
        found[number] = [1 / (1 + np.exp(-np.quantile(values, 1 - rate))) for rate in FALSE_POSITIVE_RATES]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, choose thresholds, write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the JSON lines")
    parser.add_argument("--vectors", type=Path, required=True, help="folder that keeps vectors between runs")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="weights file, default the shipped one")
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="SOURCE", help="to measure on it")
    options, encoder = parse_with_encoder(parser, arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    tuned_on = {source for fold in FOLDS for source in fold}
    rows = read_rows(options.data / name for name in FILES)
    taught = SHIPPABLE - set(options.leave_out)
    rows = [row for row in rows if row.source in taught | tuned_on]
    rows += [*attacked_documents(rows), *own_rows()]
    LOG.info("%d rows", len(rows))
    tensors = train(rows, make_bags(rows, options.vectors, encoder), taught, Settings())
    trained_on = Counter(row.source for row in rows if row.source in taught)
    card = {
        "heads": HEADS,
        "encoder": encoder.card(),
        "trained_on": dict(sorted(trained_on.items())),
        "thresholds": {
            head: dict(zip(map(str, FALSE_POSITIVE_RATES), np.round(row, 4).tolist(), strict=True))
            for head, row in zip(HEADS, tensors["thresholds"].astype(float), strict=True)
        },
    }
    write_weights(options.out, tensors, card)


if __name__ == "__main__":
    main()
