"""Trains them: `python -m cache.classifiers.train --data DIR [--vectors DIR]`; see cache/verify/REPORT.md."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.logistic import fit
from backend.classifiers.training_files import read_rows, run
from backend.classifiers.weights import write_weights
from backend.encoder.chosen import parse_with_encoder
from backend.encoder.corpus import Array, vectors_by_text
from cache.classifiers import followup, timeliness
from cache.classifiers.linear import WEIGHTS
from cache.classifiers.questions import time_questions

MARKER_PENALTY = 1.0
NUM_OWN_TURNS = 400
VECTOR_PENALTIES = {"freshness": 1.0, "followup": 30.0}


Row = dict[str, Any]


def fit_head(
    name: str, markers: Sequence[Sequence[float]], vectors: Sequence[Array], labels: Sequence[bool]
) -> dict[str, NDArray[Any]]:
    """The tensors of one head."""
    first, second = np.array(markers, np.float32), np.stack(vectors).astype(np.float32)
    penalty = np.repeat([MARKER_PENALTY, VECTOR_PENALTIES[name]], [first.shape[1], second.shape[1]])
    found = fit(np.concatenate([first, second], axis=1), np.array(labels, np.float32), penalty)
    split = first.shape[1]
    return {
        f"{name}.markers": found[:split].astype(np.float32),
        f"{name}.vector": found[split:-1].astype(np.float32),
        f"{name}.bias": found[-1:].astype(np.float32),
    }


def own_turns(questions: Sequence[str], talks: Sequence[Row], random: Random) -> list[Row]:
    """Turns of our own: questions that stand alone after any conversation, and fragments that never do."""
    fragments = Path(__file__).with_name("fragments.txt").read_text("utf-8").splitlines()
    made: list[Row] = []
    for number in range(2 * NUM_OWN_TURNS):
        history = list(random.choice(talks)["history"])
        if random.random() < 0.5:
            history = random.sample(questions, random.randint(1, 4))
        depends = number % 2 == 0
        query = random.choice(fragments if depends else questions)
        made.append({"query": query, "history": history, "context_dependent": depends})
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both heads, write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with followup.train.jsonl.gz")
    parser.add_argument("--vectors", type=Path, help="folder that keeps sentence vectors between runs")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="weights file, default the shipped one")
    options, encoder = parse_with_encoder(parser, arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    questions = list(dict.fromkeys(time_questions(Random(0))))
    talks: list[Row] = [row for row in read_rows(options.data / "followup.train.jsonl.gz") if row["history"]]
    talks += own_turns([text for text, _ in questions], talks, Random(1))
    texts = [text for text, _ in questions] + [row["query"] for row in talks]
    vectors = vectors_by_text(texts, encoder.folder(options.vectors), encoder.embed)
    tensors = fit_head(
        "freshness",
        [timeliness.markers(text) for text, _ in questions],
        [vectors[text] for text, _ in questions],
        [changes for _, changes in questions],
    )
    tensors |= fit_head(
        "followup",
        [followup.markers(row["query"], row["history"]) for row in talks],
        [vectors[row["query"]] for row in talks],
        [row["context_dependent"] for row in talks],
    )
    trained_on = {
        "own questions": len(questions),
        "conversations: own turns, cast2019 and cast2020 (treccastweb, MIT)": len(talks),
    }
    write_weights(options.out, tensors, {"trained_on": trained_on, "encoder": encoder.card()})


if __name__ == "__main__":
    run(main)
