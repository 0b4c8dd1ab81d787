"""How often the kernels' tokens are those of the sampler in torch, and why not, as JSON.

TRITON_INTERPRET=1 python -m tests.backend.kernels.sampling.agreement ROWS
"""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from backend.sampling.sampler import Sampler, SamplingBatch, _uniforms
from tests.backend.kernels.sampling.cases import SIZES, drawn, random_batch, random_logits

_SLACK = 1e-6
"""Relative: weights in float32, and their sums, round by less."""

_BOUNDS = np.linspace(-3e-7, 3e-7, 61)
"""Thresholds are one of the weights, which float32 tells apart by 2^-24 to 2^-23."""

_ROWS = 30


def is_near(logits: NDArray[np.float32], batch: SamplingBatch, row: int, token: int) -> bool:
    """Whether rounding may lead to `token`: in float64, with thresholds and edges moved by the slack."""
    temperature = max(batch.temperature[row], np.float32(1e-6))
    scaled = (logits / temperature).astype(np.float64)
    weights = np.exp(scaled - scaled.max())
    ordered = np.sort(weights)[::-1]
    uniform = _uniforms(batch.seeds[[row]], batch.positions[[row]])[0]
    top_k, top_p, min_p = (float(each[row]) for each in (batch.top_k, batch.top_p, batch.min_p))
    for by_k, by_p in itertools.product(_BOUNDS, (-_SLACK, 0.0, _SLACK)):
        bound = ordered[int(top_k) - 1] if 0 < top_k < len(logits) else 0.0
        if top_p < 1:
            left = ordered[ordered >= bound * (1 + by_k)]
            bound = left[min(int((left.cumsum() < (top_p + by_p) * left.sum()).sum()), len(left) - 1)]
        kept = np.where(weights >= max(bound, min_p) * (1 + by_k), weights, 0.0)
        upto = kept.cumsum() / kept.sum()
        before = upto[token] - kept[token] / kept.sum()
        if kept[token] > 0 and before - _SLACK <= uniform <= upto[token] + _SLACK:
            return True
    return False


def agreement(num_rows: int) -> dict[str, int]:
    """Compare `num_rows` rows or a few more; returns counts of them."""
    rng = np.random.default_rng(7)
    found = {"rows": 0, "sound": 0, "differ": 0, "near": 0}
    for size in itertools.cycle(SIZES):
        if found["rows"] >= num_rows:
            break
        logits, batch = random_logits(rng, _ROWS, size), random_batch(rng, _ROWS, size)
        tensors = Sampler(size, torch.device("cpu")).sample_on_cpu(logits, batch)
        expected, is_sound = (tensor.tolist() for tensor in tensors)
        token_ids, has_passed = drawn(logits, batch).tolist()
        assert [each == 1 for each in has_passed] == is_sound
        for row in np.flatnonzero(is_sound).tolist():
            found["sound"] += 1
            if token_ids[row] != expected[row]:
                found["differ"] += 1
                is_explained = batch.temperature[row] > 0 and is_near(
                    logits[row].numpy(), batch, row, token_ids[row]
                )
                found["near"] += is_explained
                names = ("temperature", "top_k", "top_p", "min_p")
                values = {name: getattr(batch, name)[row].item() for name in names}
                print(size, row, expected[row], token_ids[row], is_explained, values, file=sys.stderr)
        found["rows"] += len(is_sound)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(agreement(int(sys.argv[1]))))
