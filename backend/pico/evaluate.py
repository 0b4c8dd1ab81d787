"""Accuracy per family and tier on the test split, by greedy decoding: `python -m backend.pico.evaluate`.

The engine runs in process on the stored weights (bf16, computed in fp32), with or without thinking. Each
family's grader judges the text after the reasoning.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer

from backend.classifiers.training_files import run
from backend.pico.conversations import messages_of
from backend.pico.curriculum import Cell
from backend.pico.decoder import Decoder, answer_in
from backend.pico.hyper_moe import load_sparse
from backend.pico.model import SHAPES
from backend.pico.perplexity import perplexity
from backend.pico.recipe import WEIGHTS
from backend.pico.tasks import FAMILIES, Family, Instance, Split

if TYPE_CHECKING:
    from backend.pico.model import Model

LOG = logging.getLogger("backend.pico.evaluate")
ALL_TIERS = (1, 2, 3, 4, 5)
DRAWS_PER_INSTANCE = 40  # a small tier may have fewer distinct questions than requested
SHOWN_FAILURES = 3  # per cell


@dataclass(frozen=True, slots=True)
class Selection:
    """The questions to ask, and how."""

    count: int  # per family and tier
    split: Split = "test"
    thinking: bool = False
    seed: int = 0
    families: tuple[str, ...] = tuple(FAMILIES)
    tiers: tuple[int, ...] = ALL_TIERS

    def instances(self) -> dict[Cell, list[Instance]]:
        """Draw the questions of each cell."""
        return {
            Cell(name, tier, self.thinking): draw_instances(
                FAMILIES[name], tier, self.count, self.split, self.seed
            )
            for name in self.families
            for tier in self.tiers
            if tier in FAMILIES[name].tiers
        }


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one cell; `failures` are (instance, text) pairs."""

    asked: int
    failures: list[tuple[Instance, str]]
    tokens: int = 0  # generated

    @property
    def accuracy(self) -> float:
        """Fraction of right answers."""
        return 1.0 - len(self.failures) / self.asked


def draw_instances(family: Family, tier: int, count: int, split: Split, seed: int) -> list[Instance]:
    """Draw up to `count` instances with distinct prompts and contexts, deterministic in the seed."""
    rng = Random(f"evaluation:{seed}:{family.name}:{tier}")
    found: dict[tuple[object, ...], Instance] = {}
    for _ in range(count * DRAWS_PER_INSTANCE):
        instance = family.generate_in(rng, tier, split)
        found.setdefault((instance.prompt, instance.context), instance)
        if len(found) == count:
            break
    return list(found.values())


def evaluate(decoder: Decoder, selection: Selection) -> dict[Cell, Score]:
    """Ask the questions of all cells in one batch and grade the answers."""
    instances = selection.instances()
    everything = [instance for found in instances.values() for instance in found]
    asked = [messages_of(instance, thinking=selection.thinking) for instance in everything]
    texts = iter(decoder.answer(asked, thinking=selection.thinking))
    scores = {}
    for cell, found in instances.items():
        family, failures, tokens = FAMILIES[cell.family], [], 0
        for instance, completion in zip(found, islice(texts, len(found)), strict=True):
            tokens += len(completion.token_ids)
            if not family.grade(instance, answer_in(completion.text, thinking=selection.thinking)):
                failures.append((instance, completion.text))
        scores[cell] = Score(len(found), failures, tokens)
    return scores


def perplexities(model: Model, tokenizer: Tokenizer, selection: Selection) -> dict[int, float]:
    """Return the perplexity of the right answers (and reasoning) of the same questions, by tier."""
    found: dict[int, list[Instance]] = {}
    for cell, instances in selection.instances().items():
        found.setdefault(cell.tier, []).extend(instances)
    return {
        tier: perplexity(model, tokenizer, [messages_of(i, thinking=selection.thinking) for i in instances])
        for tier, instances in found.items()
    }


def mean_accuracy(scores: dict[Cell, Score], tiers: Collection[int]) -> float:
    """Return the mean accuracy over all families and these tiers, unweighted."""
    values = [score.accuracy for cell, score in scores.items() if cell.tier in tiers]
    return sum(values) / len(values)


def table(scores: dict[Cell, Score]) -> str:
    """Return the accuracies as a Markdown table: percent, and the number of questions in brackets."""
    tiers = sorted({cell.tier for cell in scores})
    by_place = {(cell.family, cell.tier): score for cell, score in scores.items()}
    lines = [
        "| family | " + " | ".join(f"tier {tier}" for tier in tiers) + " |",
        "|---" * (len(tiers) + 1) + "|",
    ]
    for name in FAMILIES:
        found = [by_place.get((name, tier)) for tier in tiers]
        if any(found):
            cells = [f"{100 * score.accuracy:.1f} ({score.asked})" if score else "" for score in found]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    means = [f"**{100 * mean_accuracy(scores, [tier]):.1f}**" for tier in tiers]
    lines.append("| **mean** | " + " | ".join(means) + " |")
    return "\n".join(lines) + "\n"


def load(folder: Path) -> tuple[Model, Tokenizer]:
    """Load stored weights as a transformers model in fp32, with their tokenizer."""
    from transformers import Qwen3ForCausalLM

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] == "qwen3_moe":
        return load_sparse(folder), tokenizer
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer


def record(scores: dict[Cell, Score], selection: Selection) -> dict[str, Any]:
    """Return the scores as JSON; `cells` are [family, tier, asked, right]."""
    return {
        "thinking": selection.thinking,
        "split": selection.split,
        "seed": selection.seed,
        "cells": [
            [cell.family, cell.tier, score.asked, score.asked - len(score.failures)]
            for cell, score in scores.items()
        ],
        "generated_tokens": sum(score.tokens for score in scores.values()),
    }


def log_failures(scores: dict[Cell, Score]) -> None:
    """Log some wrong answers of each cell."""
    for cell, score in scores.items():
        for instance, text in score.failures[:SHOWN_FAILURES]:
            LOG.info("%s tier %d: %r", cell.family, cell.tier, instance.prompt)
            LOG.info("  expected %r %r\n  got      %r", instance.thought, instance.answer, text)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SHAPES), default="pico-small")
    parser.add_argument("--weights", type=Path, help="another folder than this package's weights")
    parser.add_argument("--thinking", action="store_true", help="let the model think before it answers")
    parser.add_argument("--count", type=int, default=200, help="instances per family and tier")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES))
    parser.add_argument("--tiers", nargs="+", type=int, choices=ALL_TIERS, default=ALL_TIERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--perplexity", action="store_true", help="also the perplexity per tier")
    parser.add_argument("--failures", action="store_true", help="show some wrong answers")
    parser.add_argument("--json", type=Path, help="where to write the scores as JSON")
    return parser.parse_args()


def main() -> None:
    """Evaluate and print the table."""
    options = read_options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder = options.weights or WEIGHTS / options.model
    selection = Selection(
        options.count,
        options.split,
        options.thinking,
        options.seed,
        tuple(options.families),
        tuple(options.tiers),
    )
    started = time.perf_counter()
    scores = evaluate(Decoder(folder, threads=options.threads), selection)
    found = record(scores, selection) | {"model": options.model, "seconds": time.perf_counter() - started}
    if options.failures:
        log_failures(scores)
    sys.stdout.write(table(scores))
    if options.perplexity:
        found["perplexity"] = perplexities(*load(folder), selection)
        shown = ", ".join(f"tier {tier}: {value:.3f}" for tier, value in found["perplexity"].items())
        sys.stdout.write(f"\nPerplexity of the answers: {shown}\n")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
