"""The draw: argmax(logits / temperature + Gumbel noise) over what top_k, top_p and min_p leave.

The noise is a hash of (seed, absolute position, token id), so that a seed gives the same draw whatever the
batch, the row or the order of steps. The allowed set is a threshold on the logits: ties stay together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CANDIDATES = 128
"""Best tokens per row that filters look at first; a row whose filter reaches deeper sorts its vocabulary."""

_BLOCK_ELEMENTS = 2**20
"""Noise is made for so many logits at once: bounded, and small enough for the processor's cache."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How each of R rows is drawn. Plain arrays [R]; the caller has checked the ranges."""

    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]  # of the token to be drawn
    temperature: NDArray[np.float32]  # 0: greedy
    top_k: NDArray[np.int64]  # 0: off
    top_p: NDArray[np.float32]  # 1: off
    min_p: NDArray[np.float32]  # 0: off


class Sampler:
    """Draws tokens for one vocabulary on one device."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._device = device
        ids = np.arange(vocab_size, dtype=np.uint32)
        self._token_hash = torch.from_numpy(_mix32(ids + np.uint32(0x9E3779B9)).view(np.int32)).to(device)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> tuple[list[int], list[bool]]:
        """Token ids [R] and whether each row's logits were sound (no NaN, not all masked).

        `logits` [R, V] float32 stay as they are.
        """
        is_random = batch.temperature > 0
        if not is_random.any():
            best, token_ids = _best(logits)
            return token_ids.tolist(), torch.isfinite(best).tolist()
        if is_random.all():
            best, token_ids = self._draw(logits, batch, np.arange(len(is_random)))
            return token_ids.tolist(), torch.isfinite(best).tolist()
        best, token_ids = _best(logits)
        rows = np.flatnonzero(is_random)
        index = torch.from_numpy(rows).to(self._device)
        best[index], token_ids[index] = self._draw(logits[index], batch, rows)
        return token_ids.tolist(), torch.isfinite(best).tolist()

    def _draw(self, logits: Tensor, batch: SamplingBatch, rows: NDArray[np.intp]) -> tuple[Tensor, Tensor]:
        """Best score and token id for `logits` [R', V], which are those of `rows` of the batch."""
        scaled = logits / self._column(batch.temperature[rows])
        keys = self._keys(batch.seeds[rows], batch.positions[rows])
        top_k, top_p, min_p = batch.top_k[rows], batch.top_p[rows], batch.min_p[rows]
        is_filtered = ((top_k > 0) & (top_k < logits.shape[1])) | (top_p < 1) | (min_p > 0)
        if not is_filtered.any():
            return self._draw_all(scaled, keys)
        filters = _Filters(self._column(top_k), self._column(top_p), self._column(min_p))
        if is_filtered.all():
            return self._draw_filtered(scaled, keys, filters)
        best = torch.empty(len(rows), dtype=scaled.dtype, device=self._device)
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=self._device)
        some, others = (
            torch.from_numpy(np.flatnonzero(part)).to(self._device) for part in (is_filtered, ~is_filtered)
        )
        best[some], token_ids[some] = self._draw_filtered(scaled[some], keys[:, some], filters[some])
        best[others], token_ids[others] = self._draw_all(scaled[others], keys[:, others])
        return best, token_ids

    def _draw_filtered(self, scaled: Tensor, keys: Tensor, filters: _Filters) -> tuple[Tensor, Tensor]:
        """Draw among the best CANDIDATES of each row, again over all tokens where those may not do."""
        best, token_ids, is_certain = self._draw_candidates(scaled, keys, filters)
        rest = torch.nonzero(~is_certain).flatten()
        if len(rest):
            part = scaled[rest]
            threshold, _ = filters[rest].thresholds(part.sort(dim=-1, descending=True).values, part)
            part.masked_fill_(part < threshold, float("-inf"))
            best[rest], token_ids[rest] = self._draw_all(part, keys[:, rest])
        return best, token_ids

    def _draw_candidates(
        self, scaled: Tensor, keys: Tensor, filters: _Filters
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw among the best CANDIDATES of each row; False where the allowed set may reach beyond them."""
        values, ids = scaled.topk(min(CANDIDATES, scaled.shape[1]), dim=-1)
        threshold, is_certain = filters.thresholds(values, scaled)
        scores = values - self._noise(self._token_hash[ids], keys)
        best, choice = _best(scores.masked_fill_(values < threshold, float("-inf")))
        return best, ids.gather(1, choice[:, None])[:, 0], is_certain

    def _draw_all(self, scaled: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Draw over the whole vocabulary, a block of rows at a time."""
        num_rows, vocab_size = scaled.shape
        block = max(1, _BLOCK_ELEMENTS // vocab_size)
        parts = [
            _best(scaled[i : i + block] - self._noise(self._token_hash[None], keys[:, i : i + block]))
            for i in range(0, num_rows, block)
        ]
        return torch.cat([best for best, _ in parts]), torch.cat([token_ids for _, token_ids in parts])

    def _noise(self, token_hash: Tensor, keys: Tensor) -> Tensor:
        """Negated standard Gumbel noise [R, C] for `token_hash` [R or 1, C] int32 and `keys` [2, R] int32.

        Two rounds of a 32-bit multiply-and-shift hash with a key word in each; a mask makes shifts logical.
        """
        first, second = keys[0, :, None], keys[1, :, None]
        bits = token_hash ^ first
        bits.mul_(0x7FEB352D)
        bits.bitwise_xor_((bits >> 15).bitwise_and_(0x1FFFF)).bitwise_xor_(second)
        bits.mul_(0x846CA68B - 2**32)
        bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF)).bitwise_and_(0x7FFFFFFF)
        # log1p keeps its precision where it matters: a uniform near 0 is noise far up, which wins.
        negated_uniform = bits.to(torch.float32).add_(0.5).mul_(-(2.0**-31))
        return negated_uniform.log1p_().neg_().log_()

    def _keys(self, seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> Tensor:
        """Two int32 key words [2, R] from (seed, position)."""
        mixed = _mix64(_mix64(seeds) + positions.astype(np.uint64))
        words = np.stack([mixed.astype(np.uint32), (mixed >> np.uint64(32)).astype(np.uint32)])
        return torch.from_numpy(words.view(np.int32)).to(self._device)

    def _column(self, values: NDArray[np.float32] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._device)[:, None]


@dataclass(frozen=True, slots=True)
class _Filters:
    """top_k int64, top_p and min_p float32, each [R, 1]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def __getitem__(self, rows: Tensor) -> _Filters:
        return _Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])

    def thresholds(self, values: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest allowed value of each row [R, 1], and whether `values` sufficed to know it [R].

        `values` [R, C] are the C best of `scaled` [R, V], best first. top_p counts within what top_k leaves.
        """
        num_values, vocab_size = values.shape[1], scaled.shape[1]
        is_complete = num_values == vocab_size
        last = values[:, -1:]
        is_limited = (self.top_k > 0) & (self.top_k < vocab_size)
        at_k = values.gather(1, self.top_k.clamp(1, num_values) - 1)
        by_k = torch.where(is_limited, at_k, float("-inf"))
        allowed = values >= by_k
        inside = torch.where(allowed, values, float("-inf")).logsumexp(dim=-1, keepdim=True)
        total = (
            inside if is_complete else torch.where(is_limited, inside, scaled.logsumexp(dim=-1, keepdim=True))
        )
        probabilities = torch.where(allowed, (values - total).exp(), 0.0)
        mass_before = probabilities.cumsum(dim=-1) - probabilities
        num_inside = (mass_before < self.top_p).sum(dim=-1, keepdim=True).clamp_(1, num_values)
        by_p = torch.where(self.top_p < 1, values.gather(1, num_inside - 1), float("-inf"))
        by_min = values[:, :1] + self.min_p.log()
        threshold = torch.maximum(torch.maximum(by_k, by_p), by_min)
        if is_complete:
            return threshold, torch.ones(len(values), dtype=torch.bool, device=values.device)
        is_known = ~is_limited | ((self.top_k <= num_values) & (by_k > last))
        return threshold, (is_known & (threshold > last))[:, 0]


def _best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value and its index in each row of [R, C]; a NaN counts as largest."""
    if scores.is_cuda:
        best, index = scores.max(dim=-1)
        return best, index
    # On a CPU, torch's max and argmax take ten times as long as numpy's argmax.
    index = torch.from_numpy(scores.numpy().argmax(axis=-1))
    return scores.gather(1, index[:, None])[:, 0], index


def _mix32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A bijective avalanche hash of 32-bit words (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: a bijective avalanche hash of 64-bit words."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
