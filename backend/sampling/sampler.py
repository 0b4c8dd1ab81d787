"""The draw: one uniform number per (seed, absolute position), looked up in the row's cumulative weights.

The number is a hash, so that a seed gives the same draw whatever the batch, the row or the order of steps.
Weights are the softmax of logits / temperature; what top_k, top_p and min_p forbid weighs 0. The allowed set
is a threshold: ties stay together. Tokens are laid out by id, so that near ties do not swap places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CANDIDATES = 1024
"""Best weights per row that filters look at first; a row whose filter reaches deeper sorts its vocabulary."""

_LEAST_TEMPERATURE = 1e-6
"""Below, logits / temperature could overflow; it is as good as greedy by far."""

_RUN_TOKENS = 128
"""The draw first finds a run of so many tokens by their sums, then the token within."""

_BLOCK_ELEMENTS = 2**20
"""So many logits are worked on at once: bounds memory, and keeps it in the processor's cache."""


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
        self._vocab_size = vocab_size
        self._device = device
        self._run = torch.arange(_RUN_TOKENS, device=device)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> tuple[list[int], list[bool]]:
        """Token ids [R] and whether each row's logits were sound (no NaN, not all masked).

        `logits` [R, V] float32 stay as they are.
        """
        is_random = batch.temperature > 0
        if is_random.all():
            token_ids, is_sound = self._draw(logits, batch, np.arange(len(is_random)))
            return token_ids.tolist(), is_sound.tolist()
        best, token_ids = _best(logits)
        is_sound = torch.isfinite(best)
        if is_random.any():
            rows = np.flatnonzero(is_random)
            index = torch.from_numpy(rows).to(self._device)
            token_ids[index], is_sound[index] = self._draw(logits[index], batch, rows)
        return token_ids.tolist(), is_sound.tolist()

    def _draw(self, logits: Tensor, batch: SamplingBatch, rows: NDArray[np.intp]) -> tuple[Tensor, Tensor]:
        """Token id and soundness for each of `logits` [R', V], which are those of `rows` of the batch."""
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
        temperature = np.maximum(batch.temperature[rows], np.float32(_LEAST_TEMPERATURE))
        weights = (logits / self._column(temperature)).softmax(dim=-1)
        top_k, top_p, min_p = batch.top_k[rows], batch.top_p[rows], batch.min_p[rows]
        filtered = np.flatnonzero(((top_k > 0) & (top_k < self._vocab_size)) | (top_p < 1) | (min_p > 0))
        if len(filtered):
            columns = (self._column(values[filtered]) for values in (top_k, top_p, min_p))
            index = torch.from_numpy(filtered).to(self._device)
            part = weights if len(filtered) == len(rows) else weights[index]
            _zero_below(weights, index, _Filters(*columns).thresholds(part))
        return self._pick(weights, self._column(_uniforms(batch.seeds[rows], batch.positions[rows])))

    def _pick(self, weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Where `uniforms` [R, 1] float64 of the way through the row's sum of `weights` [R, V] lies.

        A token of weight 0 is never picked.
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
        # The run's own sum may differ from `sums` in its last digits: stay within it.
        rest = (target - (edges.gather(1, run) - sums.gather(1, run))).clamp_(min=0.0)
        rest = torch.minimum(rest, inner[:, -1:] * (1.0 - 2.0**-50))
        token_ids = ids[:, 0] + (inner <= rest).sum(dim=-1)
        return token_ids.clamp_(max=last), (total > 0)[:, 0]  # NaN is not

    def _column(self, values: NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._device)[:, None]


@dataclass(frozen=True, slots=True)
class _Filters:
    """top_k int64, top_p and min_p float32, each [R, 1]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def thresholds(self, weights: Tensor) -> Tensor:
        """The least allowed weight [R, 1] of `weights` [R, V], whose rows sum to 1."""
        threshold, is_certain = self._thresholds(_largest(weights, CANDIDATES), weights.shape[1])
        rest = torch.nonzero(~is_certain).flatten()
        if len(rest):
            some = _Filters(self.top_k[rest], self.top_p[rest], self.min_p[rest])
            part = _largest(weights[rest], weights.shape[1])
            threshold[rest], _ = some._thresholds(part, weights.shape[1])
        return threshold

    def _thresholds(self, values: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """The least allowed weight of each row [R, 1], and whether `values` sufficed to know it [R].

        `values` [R, C] are the row's C best, best first. top_p counts within what top_k leaves.
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
        # Ties with the k-th may go on behind the last value, and would count for top_p.
        knows_k = (self.top_k <= num_values) & (~has_p | (at_k > values[:, -1:]))
        knows_p = ~has_p | (mass[:, -1:] >= wanted)
        return threshold, torch.where(is_limited, knows_k, knows_p)[:, 0]


def _best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value and its index in each row of [R, C]; a NaN counts as largest."""
    if scores.is_cuda:
        best, index = scores.max(dim=-1)
        return best, index
    # On a CPU, torch's max and argmax take ten times as long as numpy's argmax.
    index = torch.from_numpy(scores.numpy().argmax(axis=-1))
    return scores.gather(1, index[:, None])[:, 0], index


def _largest(weights: Tensor, count: int) -> Tensor:
    """The `count` largest of each row of [R, V], or all when there are fewer, best first."""
    count = min(count, weights.shape[1])
    if weights.is_cuda:
        return weights.topk(count, dim=-1).values
    # On a CPU, torch's topk and sort take ten times as long as numpy's.
    values = weights.numpy()
    if count < weights.shape[1]:
        values = np.partition(values, -count, axis=-1)[:, -count:]
    return torch.from_numpy(np.sort(values, axis=-1)[:, ::-1].copy())


def _zero_below(weights: Tensor, rows: Tensor, thresholds: Tensor) -> None:
    """Set what is less than `thresholds` [R', 1] to 0 in these rows [R'] of `weights` [R, V]."""
    if weights.is_cuda:
        part = weights[rows]
        weights[rows] = part.masked_fill_(part < thresholds, 0.0)
        return
    # On a CPU, comparing takes ten times as long as torch's threshold, which keeps what is greater.
    bounds = np.nextafter(thresholds[:, 0].numpy(), np.float32(-1))
    for row, bound in zip(rows.tolist(), bounds.tolist(), strict=True):
        torch.threshold_(weights[row], bound, 0.0)


def _sums_of_runs(weights: Tensor) -> Tensor:
    """Sums of each _RUN_TOKENS neighbours in the rows of [R, V]; the last run may be shorter."""
    tail = weights.shape[1] % _RUN_TOKENS
    whole = weights.shape[1] - tail
    sums = weights[:, :whole].view(len(weights), whole // _RUN_TOKENS, _RUN_TOKENS).sum(dim=-1)
    return torch.cat([sums, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=1) if tail else sums


def _uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number strictly between 0 and 1 for each (seed, position): 48 bits of their hash."""
    mixed = _mix64(_mix64(seeds) + positions.astype(np.uint64))
    uniforms: NDArray[np.float64] = ((mixed >> np.uint64(16)).astype(np.float64) + 0.5) * 2.0**-48
    return uniforms


def _mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: a bijective avalanche hash of 64-bit words."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
