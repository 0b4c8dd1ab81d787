"""Trains the pair network, and calibrates its logits to probabilities."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from backend.classifiers.pair_model import Batch, TorchPairNetwork

Array = NDArray[np.float32]

LOG = logging.getLogger("backend.classifiers.pair_training")
BATCH, LR, EMA = 256, 2e-3, 0.998
NUM_BINS = 40


@dataclass(frozen=True, slots=True)
class EncodedPairs:
    """Pairs as arrays; words by number, 0 for none."""

    a: NDArray[np.int32]  # [N, MAX_WORDS]
    b: NDArray[np.int32]
    u: Array  # [N, vector size]
    v: Array
    features: Array  # [N, f]
    same: Array  # [N]

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """The given pairs as tensors, cut to their longest."""
        a, b = self.a[rows], self.b[rows]
        a, b = a[:, : max(1, (a > 0).sum(1).max())], b[:, : max(1, (b > 0).sum(1).max())]
        u, v = self.u[rows], self.v[rows]
        vectors = np.concatenate([np.abs(u - v), u * v], 1)
        to = torch.from_numpy
        return Batch(to(a).long(), to(b).long(), to(vectors), to(self.features[rows]))


def fit(data: EncodedPairs, weights: Array, words: Array, seed: int, epochs: int) -> TorchPairNetwork:
    """Train on all of `data`; returns the moving average of the parameters."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    mean, scale = data.features.mean(0), 1 / (data.features.std(0) + 0.05)
    network = TorchPairNetwork(
        torch.from_numpy(words), torch.from_numpy(mean), torch.from_numpy(scale), vector_size=data.u.shape[1]
    )
    average = copy.deepcopy(network)
    optimizer = torch.optim.AdamW(network.parameters(), LR, weight_decay=0.02)
    num_steps = epochs * -(-len(data.same) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, num_steps, pct_start=0.1)
    for epoch in range(epochs):
        losses = []
        for rows in _batches(data, random):
            target, weight = torch.from_numpy(data.same[rows]), torch.from_numpy(weights[rows])
            logits = network(data.batch(rows))
            loss = functional.binary_cross_entropy_with_logits(logits, target, weight)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                for mean_value, value in zip(average.parameters(), network.parameters(), strict=True):
                    mean_value.lerp_(value, 1 - EMA)
            losses.append(loss.item())
            if len(losses) % 100 == 0:
                LOG.info("step %d: loss %.4f", len(losses), np.mean(losses[-100:]))
        LOG.info("epoch %d: loss %.4f", epoch + 1, np.mean(losses))
    return average.eval()


def _batches(data: EncodedPairs, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """All rows once, at random, those of similar length together."""
    lengths = (data.a > 0).sum(1) + (data.b > 0).sum(1)
    noisy = lengths * random.uniform(0.8, 1.25, len(lengths))
    batches = np.array_split(np.argsort(noisy), -(-len(noisy) // BATCH))
    for i in random.permutation(len(batches)):
        yield batches[i]


def predict(network: TorchPairNetwork, data: EncodedPairs) -> Array:
    """Logits of all pairs."""
    logits = np.zeros(len(data.same), np.float32)
    with torch.no_grad():
        for rows in _batches(data, np.random.default_rng(0)):
            logits[rows] = network(data.batch(rows)).numpy()
    return logits


def calibrate(logits: Array, same: Array) -> tuple[Array, Array]:
    """Knots of a monotone, piecewise linear map from logit to probability (isotonic regression of bins)."""
    order = np.argsort(logits)
    bins = np.array_split(order, NUM_BINS)
    blocks = [[float(same[rows].sum()) + 0.5, float(len(rows)) + 1.0, [i]] for i, rows in enumerate(bins)]
    merged: list[list[Any]] = []
    for block in blocks:
        merged.append(block)
        while len(merged) > 1 and merged[-2][0] / merged[-2][1] >= merged[-1][0] / merged[-1][1]:
            top = merged.pop()
            merged[-1] = [merged[-1][0] + top[0], merged[-1][1] + top[1], merged[-1][2] + top[2]]
    places = [float(np.mean(logits[np.concatenate([bins[i] for i in members])])) for _, _, members in merged]
    shares = [right / total for right, total, _ in merged]
    knots = [places[0] - 15, *places, places[-1] + 10]  # tails, so that no two logits become equal
    return np.array(knots, np.float32), np.array([0.0, *shares, 1.0], np.float32)
