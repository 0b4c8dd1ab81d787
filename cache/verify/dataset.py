"""Training pairs: public files, our own perturbations and templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from backend.classifiers.training_files import read_rows
from cache.verify import perturb, templates

SHIPPABLE = frozenset(("qqp", "negation-nli", "paws"))
"""Sources that a shipped weight may be trained on; the others are measured only."""
NUM_PERTURBED, NUM_TEMPLATES = 20_000, 6_000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts and whether one answer serves both."""

    a: str
    b: str
    same: bool
    source: str


def read_pairs(path: Path) -> list[Pair]:
    """A file of question pairs. Raises RowsError."""
    return [Pair(row["a"], row["b"], bool(row["same"]), row["source"]) for row in read_rows(path)]


def own_pairs(public: Sequence[Pair], seed: int, num_perturbed: int, num_templates: int) -> list[Pair]:
    """Generated pairs: perturbed questions of the public pairs, and templates. Sources are "own-KIND"."""
    random = Random(seed)
    questions = [pair for pair in public if pair.source == "qqp"]
    corpus = perturb.corpus_of([pair.a for pair in questions])
    made: list[Pair] = []
    while len(made) < num_perturbed:
        base = random.choice(questions)
        first = base.a if random.random() < 0.5 else base.b
        second = (base.b if first == base.a else base.a) if base.same and random.random() < 0.4 else first
        pair = perturb.make_pair(first, second, random, corpus)
        if pair is not None:
            made.append(Pair(*pair[:3], f"own-{pair[3]}"))
    for _ in range(num_templates):
        pair = templates.make_pair(random)
        made.append(Pair(*pair[:3], f"own-template-{pair[3]}"))
    return made
