"""The pair network in torch, for training; `pair_network.py` is the same in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

WORD_DIM, HIDDEN, MEANING_DIM, JUDGE_DIM = 48, 48, 40, 64


@dataclass(frozen=True, slots=True)
class Batch:
    """Pairs as tensors; word ids index the table of distinct words, 0 is padding."""

    a: Tensor  # [k, n]
    b: Tensor  # [k, m]
    vectors: Tensor  # [k, 2 × vector size]
    features: Tensor  # [k, f]


class TorchPairNetwork(nn.Module):
    """Trains what PairNetwork runs; parameters have the same names."""

    words: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(
        self, words: Tensor, mean: Tensor, scale: Tensor, dropout: float = 0.2, vector_size: int = 384
    ) -> None:
        """`vector_size`: of the sentence vectors."""
        super().__init__()
        self.register_buffer("words", words)  # [distinct words, 384]
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.projection = nn.Linear(words.shape[1], WORD_DIM, bias=False)
        self.context = nn.Linear(3 * WORD_DIM, WORD_DIM)
        self.key = nn.Linear(2 * WORD_DIM, WORD_DIM, bias=False)
        self.sharpness = nn.Parameter(torch.tensor(10.0))
        self.compare = nn.Linear(5 * WORD_DIM, HIDDEN)
        self.vectors = nn.Linear(2 * vector_size, MEANING_DIM)
        self.judge = nn.Linear(4 * HIDDEN + MEANING_DIM + len(mean), JUDGE_DIM)
        self.output = nn.Linear(JUDGE_DIM, 1)
        self.skip = nn.Linear(len(mean), 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [k]."""
        mask_a, mask_b = (batch.a > 0).float(), (batch.b > 0).float()
        flat = torch.cat([batch.a.flatten(), batch.b.flatten()])
        ids, places = torch.unique(flat, return_inverse=True)
        words = self.projection(self.words[ids])[places]  # each distinct word once
        split = batch.a.numel()
        one, one_keys = self._contextual(words[:split].view(*batch.a.shape, -1), mask_a)
        other, other_keys = self._contextual(words[split:].view(*batch.b.shape, -1), mask_b)
        scores = self.sharpness * one_keys @ other_keys.transpose(1, 2)
        hidden_a = scores.masked_fill(mask_b[:, None] == 0, -1e4).softmax(2)
        hidden_b = scores.transpose(1, 2).masked_fill(mask_a[:, None] == 0, -1e4).softmax(2)
        sides = self._compare(one, hidden_a @ other, mask_a), self._compare(other, hidden_b @ one, mask_b)
        meaning = functional.relu(self.vectors(batch.vectors))
        if self.training:  # so that the judge does not lean on the vectors alone, which know the domain
            meaning = meaning * (torch.rand(len(meaning), 1) > 0.3)
        scaled = (batch.features - self.mean) * self.scale
        joined = torch.cat([sides[0] + sides[1], (sides[0] - sides[1]).abs(), meaning, scaled], 1)
        judged = self.dropout(functional.relu(self.judge(self.dropout(joined))))
        logits: Tensor = (self.output(judged) + self.skip(scaled))[:, 0]
        return logits

    def _contextual(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        words = self.dropout(words) * mask[:, :, None]
        padded = functional.pad(words, (0, 0, 1, 1))
        windows = torch.cat([padded[:, :-2], words, padded[:, 2:]], 2)
        both = torch.cat([words, functional.relu(self.context(windows)) * mask[:, :, None]], 2)
        keys = self.key(both)
        return both, keys / (keys.norm(dim=2, keepdim=True) + 1e-6)

    def _compare(self, words: Tensor, partners: Tensor, mask: Tensor) -> Tensor:
        joined = torch.cat([words[:, :, :WORD_DIM], (words - partners).abs(), words * partners], 2)
        seen = functional.relu(self.compare(joined)) * mask[:, :, None]
        return torch.cat([seen.sum(1) / mask.sum(1, keepdim=True), seen.amax(1)], 1)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Arrays for PairNetwork; the projection goes into the word table instead."""
        state = {name: value.detach().numpy() for name, value in self.state_dict().items()}
        state["features.mean"], state["features.scale"] = state.pop("mean"), state.pop("scale")
        return {name: value for name, value in state.items() if name not in ("words", "projection.weight")}
