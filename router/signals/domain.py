"""What a prompt is about: one of a few domains, by a linear head over the sentence vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.weights import Tensor, read_weights, stamp

Array = NDArray[np.float32]

WEIGHTS = Path(__file__).with_name("weights") / "domains.safetensors"
MIN_SCORE = 0.3
"""Below it a prompt belongs to none of the domains."""
OWN_WEIGHT = 30.0
"""Weight of a sentence of our own, where a public question of an average domain has 1."""
RIDGE = 3.0


def read_domains() -> tuple[list[str], dict[str, str], list[tuple[str, str]]]:
    """The domains in order, the domain of each public task, and (sentence, domain) of our own."""
    names: list[str] = []
    tasks: dict[str, str] = {}
    sentences: list[tuple[str, str]] = []
    for line in Path(__file__).with_name("domains.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, _, rest = line.partition(": ")
        known, *own = rest.split(" | ")
        names.append(name)
        tasks |= dict.fromkeys(known.split(), name)
        sentences += [(sentence, name) for sentence in own]
    return names, tasks, sentences


def load_domains(path: Path = WEIGHTS) -> tuple[list[str], Array]:
    """The domains and their columns, those that ship by default. Raises WeightsError."""
    return _load(path, stamp(path))


@lru_cache(maxsize=4)
def _load(path: Path, written: tuple[int, int]) -> tuple[list[str], Array]:
    tensors, _ = read_weights(path)
    return read_domains()[0], tensors["domains.weight"].astype(np.float32)


def domain_of(vector: Array, path: Path = WEIGHTS) -> str:
    """The domain of a text with this sentence vector; "" when it is none of them. Raises WeightsError."""
    names, weights = load_domains(path)
    scores = weights[:-1].T @ vector + weights[-1]
    best = int(scores.argmax())
    return names[best] if scores[best] >= MIN_SCORE else ""


def fit_domains(
    vectors: Array, domains: Sequence[str], own_vectors: Array, own: Sequence[str]
) -> dict[str, Tensor]:
    """Ridge regression on one column per domain, where rare domains weigh more than they are frequent."""
    names = read_domains()[0]
    labels = np.array([names.index(each) for each in [*domains, *own]])
    counts = np.bincount(labels[: len(domains)], minlength=len(names)) + 1.0
    own_weights = np.full(len(own), OWN_WEIGHT / np.sqrt(counts.mean()))
    weight = np.concatenate([1 / np.sqrt(counts[labels[: len(domains)]]), own_weights])
    inputs = np.concatenate([vectors, own_vectors])
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    weighted = inputs * (weight / weight.mean())[:, None]
    gram = weighted.T @ inputs + RIDGE * np.eye(inputs.shape[1])
    return {
        "domains.weight": np.linalg.solve(gram, weighted.T @ np.eye(len(names))[labels]).astype(np.float16)
    }
