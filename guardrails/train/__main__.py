"""Trains the classifier: `python -m guardrails.train --data DIR --vectors DIR`; see guardrails/REPORT.md."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import torch

from backend.classifiers.training_files import run
from backend.classifiers.weights import Tensor, write_weights
from backend.encoder.chosen import parse_with_encoder
from guardrails.checks.classifier import FALSE_POSITIVE_RATES, HEADS, WEIGHTS, Check, Classifier
from guardrails.train.bags import Array, Bags, make_bags
from guardrails.train.limits import limits
from guardrails.train.model import Network, Settings, fit, other_tensors_of, tensors_of
from guardrails.train.own import attacked_documents, language_rows, own_rows
from guardrails.train.rows import SHIPPABLE, Row, read_rows

LOG = logging.getLogger("guardrails.train")
_NAMES = ("injection", "toxicity", "injection_multi", "toxicity_multi")
FILES = [f"{name}.{part}.jsonl.gz" for name in _NAMES for part in ("train", "dev")]
FILES.append("overrefusal.train.jsonl.gz")
FOLDS = (("t0", "clinc", "stsb-multi"), ("mmlu", "banking77", "bipia"), ("dcrouter", "qqp", "own"))
"""Sources of ordinary texts in English that are left out together, for the thresholds."""
OTHER_FOLDS = (
    ("templates-0", "vicuna-zoo", "vicuna-sift", "xsid"),
    ("templates-1", "tldr", "square", "sib200"),
    ("templates-2", "vigogne-seed", "vigogne-doremiti", "xquad"),
)
"""And in other languages; xsid, sib200 and xquad are never trained on."""
MAX_PER_SOURCE = 400
"""Ordinary texts of a source, in one language, that thresholds are chosen on."""
LANGUAGES: Mapping[Check, Sequence[str]] = {
    "injection": ("en", "ar", "de", "es", "fr", "hi", "it", "ja", "ko", "nl", "pl", "pt", "ru", "tr", "zh"),
    "harm": ("en",),
}
"""What each check reads well enough; guardrails/REPORT.md has the figures. In the others of these, what a
check finds counts, but it misses most: a text is unreadable for it, too."""


def train(rows: Sequence[Row], bags: Bags, taught: Set[str]) -> dict[str, Tensor]:
    """The tensors, from the sources `taught`; thresholds from texts of sources that were left out."""
    english, others = bags.embedded(wanted=True), bags.embedded(wanted=False)
    settings = Settings(gram_dropout=0.3)
    other_settings = Settings(bits=17, vector_dropout=0.0, ngram_dropout=0.0, gram_dropout=0.4)
    placeholder = _placeholder(bags.vectors.shape[1], other_settings)

    def judge_english(kept: Bags) -> Callable[[list[str], Array], Array]:
        tensors = tensors_of(fit(kept, settings))
        return Classifier.of(placeholder | tensors).by_vector

    def judge_other(kept: Bags) -> Callable[[list[str], Array], Array]:
        classifier = Classifier.of(placeholder | other_tensors_of(fit(kept, other_settings)))
        return lambda texts, _: classifier.other(texts)

    tensors = tensors_of(fit(english.of(_learnt(rows, english, taught)), settings))
    judge = Classifier.of(placeholder | tensors).by_vector
    kept, logits = _left_out(rows, english, taught, FOLDS, judge_english)
    found = _limits(rows, kept, logits, english.of(kept).logits(judge))
    tensors["thresholds"] = np.asarray(1 / (1 + np.exp(-found)), np.float32)
    tensors |= other_tensors_of(fit(others.of(_learnt(rows, others, taught)), other_settings))
    classifier = Classifier.of(tensors)
    kept, logits = _left_out(rows, others, taught, OTHER_FOLDS, judge_other)
    seen = others.of(kept).logits(lambda texts, _: classifier.other(texts))
    languages = np.array([_language(others, row) for row in kept])
    for language in LANGUAGES["injection"]:
        of = np.flatnonzero(languages == language)
        if len(of):  # else the encoder reads it
            tensors[f"curves.{language}"] = _limits(rows, [kept[row] for row in of], logits[of], seen[of])
            LOG.info("%s: thresholds from %d texts", language, len(of))
    return tensors


def _placeholder(vector_size: int, other_settings: Settings) -> dict[str, Tensor]:
    """Tensors of the part that is not being judged."""
    return tensors_of(Network(Settings(), vector_size)) | other_tensors_of(Network(other_settings))


def _learnt(rows: Sequence[Row], bags: Bags, taught: Set[str]) -> list[int]:
    return [n for n, row in enumerate(rows) if row.source in taught and len(bags.windows[n])]


def _left_out(
    rows: Sequence[Row],
    bags: Bags,
    taught: Set[str],
    folds: Sequence[Sequence[str]],
    learn: Callable[[Bags], Callable[[list[str], Array], Array]],
) -> tuple[list[int], Array]:
    """Ordinary rows, and their logits by weights that have not seen their source."""
    kept: list[int] = []
    parts: list[Array] = []
    for fold in folds:
        judge = learn(bags.of(_learnt(rows, bags, taught - set(fold))))
        chosen = list(_ordinary(rows, bags, fold))
        parts.append(bags.of(chosen).logits(judge))
        kept += chosen
        LOG.info("judged %d texts without %s", len(chosen), ", ".join(fold))
    return kept, np.concatenate(parts)


def _ordinary(rows: Sequence[Row], bags: Bags, fold: Sequence[str]) -> Iterator[int]:
    seen: Counter[tuple[str, str]] = Counter()
    for number, row in enumerate(rows):
        if row.source in fold and row.is_ordinary and len(bags.windows[number]):
            key = (row.source, _language(bags, number))
            seen[key] += 1
            if seen[key] <= MAX_PER_SOURCE:
                yield number


def _language(bags: Bags, row: int) -> str:
    """The language of most of a row's windows."""
    counts = Counter(str(bags.languages[window]) for window in bags.windows[row])
    return counts.most_common(1)[0][0]


def _limits(rows: Sequence[Row], kept: Sequence[int], left_out: Array, seen: Array) -> Array:
    """Thresholds that hold for texts whose source was left out, and for those that were learnt."""
    chosen = [rows[row] for row in kept]
    is_document = np.array([row.segment in ("tool", "document") for row in chosen])
    is_harmless = np.array([row.labels.get("harmful_topic") is False for row in chosen])
    sources = [row.source for row in chosen]
    found = (limits(logits, sources, is_document, is_harmless) for logits in (left_out, seen))
    return np.asarray(np.maximum(*found), np.float32)


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
    tuned_on = {source for fold in (*FOLDS, *OTHER_FOLDS) for source in fold}
    rows = read_rows(options.data / name for name in FILES)
    taught = SHIPPABLE - set(options.leave_out)
    rows = [row for row in rows if row.source in taught | tuned_on]
    rows += attacked_documents([row for row in rows if row.source in taught])
    rows += [row for row in (*own_rows(), *language_rows()) if row.source in taught | tuned_on]
    LOG.info("%d rows", len(rows))
    tensors = train(rows, make_bags(rows, options.vectors, encoder), taught)
    trained_on = Counter(row.source for row in rows if row.source in taught)
    card = {
        "heads": HEADS,
        "encoder": encoder.card(),
        "languages": {check: sorted({*names, *encoder.languages}) for check, names in LANGUAGES.items()},
        "trained_on": dict(sorted(trained_on.items())),
        "thresholds": {
            head: dict(zip(map(str, FALSE_POSITIVE_RATES), np.round(row, 4).tolist(), strict=True))
            for head, row in zip(HEADS, tensors["thresholds"].astype(float), strict=True)
        },
    }
    write_weights(options.out, tensors, card)


if __name__ == "__main__":
    run(main)
