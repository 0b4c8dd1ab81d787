"""Runs the report's measurements on the stored models: `python -m backend.pico.results --out DIR`.

Writes one JSON file per topic and skips existing files, so a killed run can be resumed.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from backend.classifiers.training_files import run
from backend.pico.adapters.evaluate import evaluate as evaluate_adapter
from backend.pico.adapters.specs import SPECS
from backend.pico.curriculum import EMPHASIS, Mix, sample_conversations
from backend.pico.decoder import Decoder
from backend.pico.drafters.acceptance import greedy_answers, measure, summaries
from backend.pico.drafters.store import DRAFTERS, load_drafter
from backend.pico.drafters.target import load_target
from backend.pico.drafters.train import drafter_folder
from backend.pico.evaluate import Selection, evaluate, load, perplexities, record
from backend.pico.expert_load import held_out_sequences, measure_load
from backend.pico.hyper_moe import load_sparse
from backend.pico.recipe import WEIGHTS

LOG = logging.getLogger("backend.pico.results")
SMALL, LARGE = "pico-small", "pico-large"
CONVERSATIONS = 400  # for expert load and acceptance
ADAPTER_QUESTIONS = 20  # per family, tier and mode

Result = dict[str, Any]


def accuracy(weights: Path, member: str, count: int, *, thinking: bool) -> Result:
    """Measure accuracy per family and tier, and perplexity per tier."""
    selection = Selection(count, thinking=thinking)
    started = time.perf_counter()
    found = record(evaluate(Decoder(weights / member), selection), selection)
    found["seconds"] = time.perf_counter() - started
    return found | {"model": member, "perplexity": perplexities(*load(weights / member), selection)}


def expert_load(weights: Path) -> Result:
    """Measure how often each layer selects each expert."""
    model = load_sparse(weights / LARGE)
    _, tokenizer = load(weights / SMALL)
    found = measure_load(model, held_out_sequences(tokenizer, CONVERSATIONS, 0))
    return {"counts": found.counts.tolist(), "tokens": found.tokens, "conversations": CONVERSATIONS}


def acceptance(weights: Path) -> Result:
    """Measure the accepted draft tokens per position of each drafter."""
    folder = weights / LARGE
    stored = {name: place for name in DRAFTERS if (place := drafter_folder(folder, name)).is_dir()}
    drafters = {name: load_drafter(place) for name, place in stored.items()}
    conversations = sample_conversations(Random("acceptance:0"), Mix(EMPHASIS[LARGE]), CONVERSATIONS, "test")
    answered = greedy_answers(Decoder(folder), conversations)
    return dict(summaries(measure(load_target(folder), drafters, answered)))


def adapters(weights: Path) -> Result:
    """Measure each adapter's behaviour and its base's."""
    found = {}
    for name, spec in SPECS.items():
        if (folder := weights / "adapters" / name).is_dir():
            scores = evaluate_adapter(spec, weights / spec.base, folder, ADAPTER_QUESTIONS)
            found[name] = {"base": spec.base, "rank": spec.rank, "scores": [asdict(s) for s in scores]}
    return found


def topics(weights: Path, count: int) -> dict[str, Callable[[], Result]]:
    """Return the measurements by the name of their file."""
    return {
        "small": partial(accuracy, weights, SMALL, count, thinking=False),
        "large": partial(accuracy, weights, LARGE, count, thinking=False),
        "large-thinking": partial(accuracy, weights, LARGE, count, thinking=True),
        "load": partial(expert_load, weights),
        "acceptance": partial(acceptance, weights),
        "adapters": partial(adapters, weights),
    }


def main() -> None:
    """Run the measurements whose files are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the family's members")
    parser.add_argument("--count", type=int, default=100, help="questions per family, tier and mode")
    parser.add_argument("--only", nargs="+", choices=tuple(topics(WEIGHTS, 0)), help="these topics")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, take in topics(options.weights, options.count).items():
        path = options.out / f"{name}.json"
        if path.exists() or name not in (options.only or [name]):
            continue
        LOG.info("measuring %s", name)
        path.write_text(json.dumps(take(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
