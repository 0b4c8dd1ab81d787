"""The tagger in PyTorch: the same sums as `NameModel`, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guardrails.checks.personal_data.names import DILATIONS, TAGS
from guardrails.checks.personal_data.words import (
    NUM_FLAGS,
    NUM_SENTENCE_FEATURES,
    features_of,
    sentence_features,
    summary_of,
)
from guardrails.train.names.rows import Sentence

NUM_PIECES, PIECE_DIM, KNOWN_DIM, HIDDEN = 2**15, 32, 48, 96
BATCH, EPOCHS, LEARNING_RATE = 64, 4, 4e-3


class Tagger(nn.Module):
    """Words to logits. `dictionary`: the vectors of known words, by their digests."""

    dictionary: Tensor

    def __init__(self, digests: Sequence[int], dictionary: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.rows = {digest: row + 1 for row, digest in enumerate(digests)}  # row 0: unknown
        self.register_buffer(
            "dictionary", torch.tensor(np.vstack([np.zeros_like(dictionary[:1]), dictionary]))
        )
        self.pieces = nn.EmbeddingBag(NUM_PIECES + 1, PIECE_DIM, mode="sum", padding_idx=NUM_PIECES)
        nn.init.normal_(self.pieces.weight, 0, 0.05)
        self.known = nn.Linear(dictionary.shape[1], KNOWN_DIM, bias=False)
        self.form = nn.Linear(PIECE_DIM + KNOWN_DIM + 1 + NUM_FLAGS, HIDDEN, bias=False)
        self.sentence = nn.Linear(NUM_SENTENCE_FEATURES, HIDDEN)
        self.convs = nn.ModuleList(nn.Conv1d(HIDDEN, HIDDEN, 3, padding=d, dilation=d) for d in DILATIONS)
        self.out = nn.Linear(HIDDEN, len(TAGS))
        self.dropout = nn.Dropout(0.3)

    def forward(self, batch: Batch) -> Tensor:
        """[B, W, len(TAGS)]."""
        pieces = self.pieces(batch.pieces, batch.offsets)
        known = torch.cat([self.known(self.dictionary[batch.known]), (batch.known > 0).float()[:, None]], 1)
        if self.training:  # some words are new, some are not in the dictionary
            pieces = pieces * (torch.rand(len(pieces), 1) > 0.1)
            known = known * (torch.rand(len(known), 1) > 0.15)
        form = self.form(torch.cat([pieces, known, batch.flags], 1)).view(*batch.mask.shape, HIDDEN)
        mask = batch.mask[:, None]
        hidden = torch.relu(form + self.sentence(batch.sentence)[:, None]).transpose(1, 2) * mask
        for conv in self.convs:
            hidden = (hidden + torch.relu(conv(self.dropout(hidden)))) * mask
        found: Tensor = self.out(self.dropout(hidden.transpose(1, 2)))
        return found


class Batch:
    """Sentences as tensors, padded to the longest."""

    def __init__(self, sentences: Sequence[Sentence], rows: dict[int, int]) -> None:
        num_words = max(len(sentence.words) for sentence in sentences)
        pieces: list[int] = []
        offsets, known = [], np.zeros(len(sentences) * num_words, np.int64)
        flags = np.zeros((len(known), NUM_FLAGS), np.float32)
        mask = np.zeros((len(sentences), num_words), np.float32)
        tags = np.full(mask.shape, -1)
        for number, (words, own_tags) in enumerate(sentences):
            mask[number, : len(words)], tags[number, : len(words)] = 1, own_tags
            for place in range(num_words):
                offsets.append(len(pieces))
                if place < len(words):
                    own, digest, own_flags = _features(words[place].form)
                    pieces += own
                    known[number * num_words + place] = rows.get(digest, 0)
                    flags[number * num_words + place] = own_flags
        self.pieces, self.offsets = torch.tensor([*pieces, NUM_PIECES]), torch.tensor(offsets)
        self.known, self.flags, self.mask = map(torch.from_numpy, (known, flags, mask))
        self.sentence = torch.from_numpy(np.stack([_sentence_features(each) for each in sentences]))
        self.tags = torch.from_numpy(tags)


def _sentence_features(sentence: Sentence) -> np.ndarray[Any, Any]:
    return sentence_features(np.array([summary_of(word.form) for word in sentence.words], np.float32))


@cache
def _features(form: str) -> tuple[list[int], int, list[float]]:
    return features_of(form, NUM_PIECES)


def fit(tagger: Tagger, sentences: Sequence[Sentence], seed: int = 0) -> None:
    """Train in place."""
    draw = Random(seed)
    optimizer = torch.optim.AdamW(tagger.parameters(), weight_decay=1e-4)
    num_steps = EPOCHS * (len(sentences) // BATCH + 2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=num_steps)
    tagger.train()
    for _ in range(EPOCHS):
        for chunk in _chunks(draw, sentences):
            batch = Batch(chunk, tagger.rows)
            loss = nn.functional.cross_entropy(
                tagger(batch).flatten(0, 1), batch.tags.flatten(), ignore_index=-1
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(tagger.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    tagger.eval()


def _chunks(draw: Random, sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """In random order, each of sentences of about one length."""
    order = sorted(
        draw.sample(sentences, len(sentences)), key=lambda each: len(each.words) + 4 * draw.random()
    )
    chunks = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    return draw.sample(chunks, len(chunks))


def tensors_of(tagger: Tagger) -> dict[str, np.ndarray[Any, Any]]:
    """What `NameModel` reads: tables of eight bits, layers of sixteen."""
    pieces, piece_scale = _eight_bits(tagger.pieces.weight[:NUM_PIECES])
    known, known_scale = _eight_bits(tagger.known(tagger.dictionary[1:]))
    layers: dict[str, Tensor] = {
        "form": tagger.form.weight,
        "sentence": tagger.sentence.weight,
        "bias": tagger.sentence.bias,
        "out": tagger.out.weight.T,
        "out_bias": tagger.out.bias,
    }
    for number, conv in enumerate(tagger.convs):
        parameters = dict(conv.named_parameters())
        layers[f"conv{number}"] = parameters["weight"].permute(2, 1, 0)
        layers[f"conv{number}_bias"] = parameters["bias"]
    tables = {"pieces": pieces, "piece_scale": piece_scale, "known": known, "known_scale": known_scale}
    digests = np.array(list(tagger.rows), np.uint32)
    return (
        tables
        | {"known_digests": digests}
        | {n: v.detach().numpy().astype(np.float16) for n, v in layers.items()}
    )


def _eight_bits(table: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    values = table.detach().numpy()
    scale = np.abs(values).max(0) / 127
    return np.round(values / scale).astype(np.int8), scale.astype(np.float32)
