"""Trains the verifier: `python -m cache.verify.train --data DIR [--vectors DIR] [--leave-out SOURCE …]`."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch.nn import functional

from backend.encoder.checkpoint import BUILTIN, resolve
from cache.verify.dataset import Array, Pair
from cache.verify.features import NAMES, pair_features
from cache.verify.model import Batch, TorchPairNetwork
from cache.verify.network import MAX_WORDS
from cache.verify.vocabulary import Vocabulary
from cache.verify.words import read

LOG = logging.getLogger("cache.verify.train")
BATCH, EPOCHS, LR, EMA = 256, 8, 2e-3, 0.998


@dataclass(frozen=True, slots=True)
class Encoded:
    """Pairs as arrays."""

    a: NDArray[np.int32]  # [N, MAX_WORDS]
    b: NDArray[np.int32]
    u: Array  # [N, 384]
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


def load_pieces() -> tuple[list[str], Array]:
    """The word pieces of the sentence encoder and their embeddings, without the unused ones."""
    folder = resolve(BUILTIN)
    vocab: dict[str, int] = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    pieces = [piece for piece in vocab if not piece.startswith("[unused")]
    table: Array = tensors[name][[vocab[piece] for piece in pieces]].astype(np.float32)
    return pieces, table


def rarity(pieces: Sequence[str], texts: Sequence[str]) -> Array:
    """IDF of each piece in `texts`, scaled to at most 1."""
    counts: dict[str, int] = {}
    for text in texts:
        for word in set(read(text).words):
            counts[word] = counts.get(word, 0) + 1
    idf = np.array([np.log((len(texts) + 1) / (counts.get(piece, 0) + 1)) for piece in pieces])
    return (idf / np.log(len(texts) + 1)).astype(np.float32)


class Encoder:
    """Turns pairs into arrays; collects the distinct words."""

    def __init__(self, vocabulary: Vocabulary, embeddings: Array) -> None:
        self._vocabulary = vocabulary
        self._embeddings = embeddings
        self._ids: dict[str, int] = {}
        self._rows: list[Array] = [np.zeros(embeddings.shape[1], np.float32)]

    def encode(self, pairs: Sequence[Pair], vectors: dict[str, Array]) -> Encoded:
        """Analyse all pairs."""
        ids = {
            "a": np.zeros((len(pairs), MAX_WORDS), np.int32),
            "b": np.zeros((len(pairs), MAX_WORDS), np.int32),
        }
        u, v = (
            np.stack([vectors[getattr(pair, side)] for pair in pairs]).astype(np.float32) for side in "ab"
        )
        cosines = (u * v).sum(1)
        features = np.zeros((len(pairs), len(NAMES)), np.float32)
        for i, pair in enumerate(pairs):
            a, b = read(pair.a), read(pair.b)
            for side, sentence in (("a", a), ("b", b)):
                for j, word in enumerate(sentence.words[:MAX_WORDS] or ("[UNK]",)):
                    ids[side][i, j] = self._id(word)
            features[i] = pair_features(a, b, float(cosines[i]), self._vocabulary.idf)
        same = np.array([pair.same for pair in pairs], np.float32)
        return Encoded(ids["a"], ids["b"], u, v, features, same)

    def words(self) -> Array:
        """Vectors of the distinct words [n, 384]; row 0 is padding."""
        return np.stack(self._rows)

    def _id(self, word: str) -> int:
        found = self._ids.get(word)
        if found is None:
            found = self._ids[word] = len(self._rows)
            self._rows.append(self._embeddings[list(self._vocabulary.rows(word))].mean(0))
        return found


def fit(data: Encoded, weights: Array, words: Array, seed: int, epochs: int = EPOCHS) -> TorchPairNetwork:
    """Train on all of `data`; returns the moving average of the parameters."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    mean, scale = data.features.mean(0), 1 / (data.features.std(0) + 1e-3)
    network = TorchPairNetwork(torch.from_numpy(words), torch.from_numpy(mean), torch.from_numpy(scale))
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
        LOG.info("epoch %d: loss %.4f", epoch + 1, np.mean(losses))
    return average.eval()


def _batches(data: Encoded, random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """All rows once, at random, those of similar length together."""
    lengths = (data.a > 0).sum(1) + (data.b > 0).sum(1)
    noisy = lengths * random.uniform(0.8, 1.25, len(lengths))
    batches = np.array_split(np.argsort(noisy), -(-len(noisy) // BATCH))
    for i in random.permutation(len(batches)):
        yield batches[i]


def predict(network: TorchPairNetwork, data: Encoded) -> Array:
    """Logits of all pairs."""
    logits = np.zeros(len(data.same), np.float32)
    with torch.no_grad():
        for rows in _batches(data, np.random.default_rng(0)):
            logits[rows] = network(data.batch(rows)).numpy()
    return logits


def blend(network_logits: Array, cosines: Array) -> Array:
    """The network's logit, drawn towards one of the cosine alone, which knows all domains equally well."""
    return NETWORK_SHARE * network_logits + COSINE_SLOPE * cosines


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


def quantise(table: Array) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Rows as int8 with a scale each."""
    scale = (np.abs(table).max(1) / 127 + 1e-8).astype(np.float16)
    return np.clip(np.round(table / scale[:, None].astype(np.float32)), -127, 127).astype(np.int8), scale


def tensors_of(
    network: TorchPairNetwork, pieces: Sequence[str], embeddings: Array, idf: Array
) -> dict[str, NDArray[Any]]:
    """What is shipped, apart from the calibration."""
    table, scale = quantise(embeddings @ network.projection.weight.detach().numpy().T)
    tensors: dict[str, NDArray[Any]] = {
        name: value.astype(np.float16 if value.size > 500 else np.float32)
        for name, value in network.weights().items()
    }
    tensors |= {"table": table, "table.scale": scale, "idf": np.round(idf * 255).astype(np.uint8)}
    tensors["pieces"] = np.frombuffer("\n".join(pieces).encode(), np.uint8)
    tensors["blend"] = np.array([NETWORK_SHARE, COSINE_SLOPE], np.float32)
    return tensors
