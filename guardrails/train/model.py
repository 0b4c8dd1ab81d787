"""Fits the classifier's weights: texts are bags of windows, of which the worst one answers for the text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from backend.classifiers.weights import Tensor
from guardrails.checks.classifier import FALSE_POSITIVE_RATES, HEADS
from guardrails.checks.ngrams import BITS
from guardrails.train.bags import Bags

MAX_WINDOWS = 48
"""Windows of a text in one step; others are drawn in the next epoch."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a training run."""

    epochs: int = 6
    batch: int = 96
    width: int = 64
    rate: float = 2e-3
    ngram_rate: float = 4e-3
    ngram_decay: float = 0.02
    decay: float = 0.1
    vector_dropout: float = 0.5
    ngram_dropout: float = 0.4  # of all n-grams of a window
    gram_dropout: float = 0.0  # of single ones, so that no frame decides alone
    mean_weight: float = 0.1  # of the mean over a harmless text's windows in the loss, beside the worst one
    bits: int = 15  # of a bucket's number
    seed: int = 0


class Network(torch.nn.Module):
    """The same sum of two models as the classifier's."""

    def __init__(self, settings: Settings, vector_size: int = 384) -> None:
        super().__init__()
        self.settings = settings
        self.hidden = torch.nn.Linear(vector_size, settings.width)
        self.out = torch.nn.Linear(settings.width, len(HEADS))
        self.ngrams = torch.nn.EmbeddingBag(1 << settings.bits, len(HEADS), mode="sum")
        torch.nn.init.zeros_(self.ngrams.weight)
        torch.nn.init.constant_(self.out.bias, -3.0)
        with torch.no_grad():
            self.hidden.weight.mul_(6.0)  # a vector's entries are about 1/20

    def forward(self, vectors: torch.Tensor, buckets: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """[W, H] logits of windows."""
        counts = (offsets[1:] - offsets[:-1]).clamp(min=1)
        scale = counts.rsqrt().repeat_interleave(offsets[1:] - offsets[:-1])
        if self.training and self.settings.gram_dropout:
            scale = functional.dropout(scale, self.settings.gram_dropout)
        words = self.ngrams(buckets, offsets[:-1], per_sample_weights=scale)
        hidden = functional.relu(
            self.hidden(functional.dropout(vectors, self.settings.vector_dropout, self.training))
        )
        if self.training:  # whole windows: each model must do without the other
            keep = torch.rand(len(words), 1) >= self.settings.ngram_dropout
            words = words * keep
        logits: torch.Tensor = self.out(hidden) + words
        return logits


def fit(bags: Bags, settings: Settings) -> Network:
    """Train on all texts."""
    torch.manual_seed(settings.seed)
    draw = np.random.default_rng(settings.seed)
    network = Network(settings, bags.vectors.shape[1])
    dense = [*network.hidden.parameters(), *network.out.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": dense, "lr": settings.rate, "weight_decay": settings.decay},
            {
                "params": [network.ngrams.weight],
                "lr": settings.ngram_rate,
                "weight_decay": settings.ngram_decay,
            },
        ]
    )
    num_steps = settings.epochs * (len(bags.windows) // settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [settings.rate, settings.ngram_rate], total_steps=num_steps + 1, pct_start=0.1
    )
    network.train()
    for _ in range(settings.epochs):
        order = draw.permutation(len(bags.windows))
        for start in range(0, len(order) - settings.batch + 1, settings.batch):
            loss = _loss(network, bags, order[start : start + settings.batch], draw)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    network.eval()
    return network


def _loss(network: Network, bags: Bags, rows: NDArray[np.int64], draw: np.random.Generator) -> torch.Tensor:
    chosen = [
        each if len(each) <= MAX_WINDOWS else draw.choice(each, MAX_WINDOWS, replace=False)
        for each in (bags.windows[row] for row in rows)
    ]
    windows = np.concatenate(chosen)
    owners = torch.from_numpy(np.repeat(np.arange(len(rows)), [len(each) for each in chosen]))
    lengths = bags.offsets[windows + 1] - bags.offsets[windows]
    starts = np.repeat(bags.offsets[windows] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    buckets = bags.buckets[starts + np.arange(len(starts))] >> (BITS - network.settings.bits)
    logits = network(
        torch.from_numpy(bags.vectors[windows].astype(np.float32)),
        torch.from_numpy(buckets),
        torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
    )
    labels = torch.from_numpy(bags.labels[rows])
    known = (labels >= 0) * torch.from_numpy(bags.weights[rows])[:, None]
    index = owners[:, None].expand_as(logits)
    worst = torch.full(labels.shape, -30.0).scatter_reduce(0, index, logits, "amax")
    loss = functional.binary_cross_entropy_with_logits(worst, labels.clamp(min=0), reduction="none")
    total: torch.Tensor = (loss * known).sum() / known.sum()
    harmless = ((labels == 0) * known)[owners]
    total = total + network.settings.mean_weight * (
        (functional.softplus(logits) * harmless).sum() / harmless.sum().clamp(min=1)
    )
    return total


def tensors_of(network: Network) -> dict[str, Tensor]:
    """Tensors as the classifier reads them; the thresholds are filled in later."""
    return {
        "hidden": network.hidden.weight.detach().numpy().T.astype(np.float16),
        "hidden_bias": network.hidden.bias.detach().numpy(),
        "out": network.out.weight.detach().numpy().T.astype(np.float16),
        "bias": network.out.bias.detach().numpy(),
        **_table("ngrams", network),
        "thresholds": np.full((len(HEADS), len(FALSE_POSITIVE_RATES)), 0.5, np.float32),
    }


def other_tensors_of(network: Network) -> dict[str, Tensor]:
    """The tensors of a network that has seen no vectors: what it makes of none is its bias."""
    with torch.no_grad():
        bias = network.out(functional.relu(network.hidden.bias)).numpy()
    return {"other_bias": bias, **_table("other_ngrams", network)}


def _table(name: str, network: Network) -> dict[str, Tensor]:
    table = network.ngrams.weight.detach().numpy()
    scale = np.maximum(np.abs(table).max(0, keepdims=True), 1e-6) / 127
    return {name: np.round(table / scale).astype(np.int8), f"{name}.scale": scale.astype(np.float32)}
