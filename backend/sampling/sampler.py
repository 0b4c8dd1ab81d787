"""Inverse-CDF sampling: a uniform number per (seed, absolute position), looked up in the cumulative weights.

The number is a hash of seed and position, so a seed gives the same draw in any batch, row or order of steps.
Weights are softmax(logits / temperature), set to 0 where top_k, top_p or min_p exclude a token. The filters
act by a threshold on the weight, so ties are kept or dropped together. The cumulative sum runs in order of
token ids, not of weights, so that rounding noise between near ties does not reorder it.
This is torch on a CPU; on a GPU the kernels of backend/kernels/sampling draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.device import uses_triton
from backend.kernels.sampling import sample
from backend.kernels.upload import upload

CANDIDATES = 1024
"""Largest weights per row that filters look at first; a row that needs more sorts its whole vocabulary."""

_MIN_TEMPERATURE = 1e-6
"""Lower temperatures are clamped: logits / temperature could overflow, and the result is greedy anyway."""

_RUN_TOKENS = 128
"""Two-level search: first over the sums of runs of this many tokens, then within a run."""

_MAX_TOP_K = 2**31 - 1
"""More would not fit into a word; no vocabulary is as large."""

_BLOCK_ELEMENTS = 2**20
"""Logits processed at once: bounds memory, and stays in the CPU's cache."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of R rows, as arrays [R]; the caller has validated the ranges."""

    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]  # absolute position of the token to sample
    temperature: NDArray[np.float32]  # 0: greedy
    top_k: NDArray[np.int64]  # 0: off
    top_p: NDArray[np.float32]  # 1: off
    min_p: NDArray[np.float32]  # 0: off

    def words(self) -> NDArray[np.int32]:
        """Seed (two words), position, temperature, top_k, top_p and min_p as bits, and a 0: [R, 8]."""
        words = np.zeros((len(self.seeds), 8), dtype=np.int32)
        words[:, :2] = np.ascontiguousarray(self.seeds).view(np.int32).reshape(-1, 2)
        words[:, 2] = self.positions
        words[:, 3] = self.temperature.view(np.int32)
        words[:, 4] = np.minimum(self.top_k, _MAX_TOP_K)
        words[:, 5] = self.top_p.view(np.int32)
        words[:, 6] = self.min_p.view(np.int32)
        return words


class Sampler:
    """Samples tokens for one vocabulary on one device."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._run = torch.arange(_RUN_TOKENS)

    def sample(
        self, logits: Tensor, batch: SamplingBatch, words: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return token ids [R] and whether each row was sound: without NaN and not fully masked.

        `logits` [R, V] float32 are not modified. `words`: those of the batch, if the device has them. The
        host does not wait for it.
        """
        if uses_triton(logits):
            is_random = batch.temperature > 0
            if words is None:
                (words,) = upload([batch.words()], self._device)
            has_top_k = (batch.top_k > 0) & (batch.top_k < self._vocab_size)
            is_on = ((is_random & each).any() for each in (True, has_top_k, batch.top_p < 1))
            return sample(logits, words, *map(bool, is_on))
        return self.sample_on_cpu(logits, batch)

    def sample_on_cpu(self, logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
        """Return what `sample` does, from torch."""
        is_random = batch.temperature > 0
        if is_random.all():
            return self._draw(logits, batch, np.arange(len(is_random)))
        best, token_ids = _argmax(logits)
        is_sound = torch.isfinite(best)
        if is_random.any():
            rows = np.flatnonzero(is_random)
            index = torch.from_numpy(rows)
            token_ids[index], is_sound[index] = self._draw(logits[index], batch, rows)
        return token_ids, is_sound

    def _draw(self, logits: Tensor, batch: SamplingBatch, rows: NDArray[np.intp]) -> tuple[Tensor, Tensor]:
        """Return token ids and soundness for `logits` [R', V], which belong to `rows` [R'] of the batch."""
        size = max(1, _BLOCK_ELEMENTS // self._vocab_size)
        parts = [
            self._draw_block(logits[i : i + size], batch, rows[i : i + size])
            for i in range(0, len(rows), size)
        ]
        if len(parts) == 1:
            return parts[0]
        return torch.cat([token_ids for token_ids, _ in parts]), torch.cat([sound for _, sound in parts])

    def _draw_block(
        self, logits: Tensor, batch: SamplingBatch, rows: NDArray[np.intp]
    ) -> tuple[Tensor, Tensor]:
        temperature = np.maximum(batch.temperature[rows], np.float32(_MIN_TEMPERATURE))
        weights = (logits / self._column(temperature)).softmax(dim=-1)
        top_k, top_p, min_p = batch.top_k[rows], batch.top_p[rows], batch.min_p[rows]
        filtered = np.flatnonzero(((top_k > 0) & (top_k < self._vocab_size)) | (top_p < 1) | (min_p > 0))
        if len(filtered):
            columns = (self._column(values[filtered]) for values in (top_k, top_p, min_p))
            index = torch.from_numpy(filtered)
            part = weights if len(filtered) == len(rows) else weights[index]
            _zero_below(weights, index, _Filters(*columns).thresholds(part))
        return self._pick(weights, self._column(_uniforms(batch.seeds[rows], batch.positions[rows])))

    def _pick(self, weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first token with cumulative weight > u · sum(weights), and whether the sum is > 0.

        `weights` [R, V] need not be normalised; u = `uniforms` [R, 1] float64. Never picks a weight of 0.
        """
        sums = _sums_of_runs(weights)
        edges = sums.cumsum(dim=-1, dtype=torch.float64)
        total = edges[:, -1:]
        target = uniforms * total
        run = (edges <= target).sum(dim=-1, keepdim=True).clamp_(max=sums.shape[1] - 1)
        ids = run * _RUN_TOKENS + self._run
        last = self._vocab_size - 1
        inside = weights.gather(1, ids.clamp(max=last))
        if self._vocab_size % _RUN_TOKENS:
            inside.masked_fill_(ids > last, 0.0)
        inner = inside.cumsum(dim=-1, dtype=torch.float64)
        # `sums` and `inner` round differently: clamp the offset into the run's own total.
        offset = (target - (edges.gather(1, run) - sums.gather(1, run))).clamp_(min=0.0)
        offset = torch.minimum(offset, inner[:, -1:] * (1.0 - 2.0**-50))
        token_ids = ids[:, 0] + (inner <= offset).sum(dim=-1)
        return token_ids.clamp_(max=last), (total > 0)[:, 0]  # False for NaN

    def _column(self, values: NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values)[:, None]


@dataclass(frozen=True, slots=True)
class _Filters:
    """top_k int64, top_p and min_p float32, each [R, 1]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def thresholds(self, weights: Tensor) -> Tensor:
        """Return the smallest allowed weight [R, 1] of `weights` [R, V], whose rows sum to 1."""
        threshold, is_exact = self._thresholds(_largest(weights, CANDIDATES), weights.shape[1])
        inexact = torch.nonzero(~is_exact).flatten()
        if len(inexact):
            some = _Filters(self.top_k[inexact], self.top_p[inexact], self.min_p[inexact])
            part = _largest(weights[inexact], weights.shape[1])
            threshold[inexact], _ = some._thresholds(part, weights.shape[1])
        return threshold

    def _thresholds(self, values: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Return max(t_k, t_p, t_min) [R, 1], and whether `values` sufficed to compute it [R].

        `values` [R, C] are the C largest weights w of each row, descending. t_k = w[k - 1]; t_min = min_p ·
        w[0]; t_p = w[j] with the smallest j such that w[0] + … + w[j] ≥ top_p · (the weight that top_k
        leaves).
        """
        num_values = values.shape[1]
        is_limited = (self.top_k > 0) & (self.top_k < vocab_size)
        at_k = values.gather(1, self.top_k.clamp(1, num_values) - 1)
        by_k = torch.where(is_limited, at_k, 0.0)
        allowed = torch.where(values >= by_k, values, 0.0)
        mass = allowed.cumsum(dim=-1, dtype=torch.float64)
        wanted = self.top_p * torch.where(is_limited, mass[:, -1:], 1.0)
        num_inside = (mass - allowed < wanted).sum(dim=-1, keepdim=True).clamp_(1, num_values)
        has_p = self.top_p < 1
        by_p = torch.where(has_p, values.gather(1, num_inside - 1), 0.0)
        by_min = values[:, :1] * self.min_p
        threshold = torch.maximum(torch.maximum(by_k, by_p), by_min)
        if num_values == vocab_size:
            return threshold, torch.ones(len(values), dtype=torch.bool, device=values.device)
        # Ties with the k-th weight may continue beyond `values`, and would count towards top_p.
        is_k_exact = (self.top_k <= num_values) & (~has_p | (at_k > values[:, -1:]))
        is_p_exact = ~has_p | (mass[:, -1:] >= wanted)
        return threshold, torch.where(is_limited, is_k_exact, is_p_exact)[:, 0]


def _argmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value [R] and its index [R] in each row of [R, C]; NaN counts as the largest."""
    # torch's max and argmax take ten times as long as numpy's argmax.
    index = torch.from_numpy(scores.numpy().argmax(axis=-1))
    return scores.gather(1, index[:, None])[:, 0], index


def _largest(weights: Tensor, count: int) -> Tensor:
    """Return the min(`count`, V) largest weights of each row of [R, V], descending."""
    count = min(count, weights.shape[1])
    # torch's topk and sort take ten times as long as numpy's.
    values = weights.numpy()
    if count < weights.shape[1]:
        values = np.partition(values, -count, axis=-1)[:, -count:]
    return torch.from_numpy(np.sort(values, axis=-1)[:, ::-1].copy())


def _zero_below(weights: Tensor, rows: Tensor, thresholds: Tensor) -> None:
    """Set weights below `thresholds` [R', 1] to 0 in `rows` [R'] of `weights` [R, V], in place."""
    # A masked fill takes ten times as long as torch.threshold, which keeps values > its bound.
    bounds = np.nextafter(thresholds[:, 0].numpy(), np.float32(-1))
    for row, bound in zip(rows.tolist(), bounds.tolist(), strict=True):
        torch.threshold_(weights[row], bound, 0.0)


def _sums_of_runs(weights: Tensor) -> Tensor:
    """Return the sums of runs of _RUN_TOKENS tokens in each row of [R, V]; the last run may be shorter."""
    tail = weights.shape[1] % _RUN_TOKENS
    whole = weights.shape[1] - tail
    sums = weights[:, :whole].view(len(weights), whole // _RUN_TOKENS, _RUN_TOKENS).sum(dim=-1)
    return torch.cat([sums, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=1) if tail else sums


def _uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a number in (0, 1) for each (seed, position): the top 48 bits of their hash."""
    mixed = _mix64(_mix64(seeds) + positions.astype(np.uint64))
    uniforms: NDArray[np.float64] = ((mixed >> np.uint64(16)).astype(np.float64) + 0.5) * 2.0**-48
    return uniforms


def _mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64, a bijective hash of 64-bit words (Steele et al., OOPSLA 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
