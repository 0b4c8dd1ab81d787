"""Sampling in Triton: the tokens of the sampler in torch, in odd vocabularies with ties, -inf and NaN."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from backend.kernels.sampling import kernel
from backend.sampling.sampler import Sampler, SamplingBatch
from tests.backend.kernels.cases import Cases, Launch, Value

SIZES = (199, 1000, 5003)
"""Vocabularies: within one block, and over two; none is a multiple of a mask's word."""


def random_batch(rng: np.random.Generator, num_rows: int, size: int) -> SamplingBatch:
    """Rows with every kind of parameter, and their extremes."""
    return SamplingBatch(
        seeds=rng.integers(0, 2**64, num_rows, dtype=np.uint64),
        positions=rng.integers(0, 2**20, num_rows),
        temperature=rng.choice([0, 0.5, 1, 2, 1e4, 1e-7], num_rows).astype(np.float32),
        top_k=rng.choice([0, 0, 1, 20, size // 2, size - 1, size, size + 5], num_rows),
        top_p=rng.choice([1, 1, 0.9, 0.5, 0.999, 1e-6], num_rows).astype(np.float32),
        min_p=rng.choice([0, 0, 0, 0.05, 1], num_rows).astype(np.float32),
    )


def random_logits(rng: np.random.Generator, num_rows: int, size: int) -> Tensor:
    """Flat and steep rows; every third has ties, every fourth -inf; one has a NaN, one is all -inf."""
    scale = rng.choice([0.3, 1, 3, 10], (num_rows, 1))
    logits = (rng.standard_normal((num_rows, size)) * scale).astype(np.float32)
    logits[::3] = np.round(logits[::3] * 2) / 2
    logits[::4] = np.where(rng.random(logits[::4].shape) < 0.4, -np.inf, logits[::4])
    logits[2, size // 3] = np.nan
    logits[5] = -np.inf
    return torch.from_numpy(logits)


def drawn(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """What the kernels compute: tokens, and 1 for sound rows."""
    has_top_k, has_top_p = bool((batch.top_k > 0).any()), bool((batch.top_p < 1).any())
    words = torch.from_numpy(batch.words()).to(logits.device)
    return kernel.sample(logits, words, bool((batch.temperature > 0).any()), has_top_k, has_top_p)


def value(size: int, changes: dict[str, float], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Tokens and soundness: those of the sampler in torch wherever the row is sound."""
    rng = np.random.default_rng(size)
    logits, batch = random_logits(rng, 12, size).to(dtype).float(), random_batch(rng, 12, size)
    batch = replace(
        batch, **{key: np.full_like(getattr(batch, key), value) for key, value in changes.items()}
    )
    token_ids, is_sound = Sampler(size, torch.device("cpu")).sample_on_cpu(logits, batch)
    expected = torch.stack((token_ids, is_sound.long()))
    found = drawn(logits.to(device), batch).cpu()
    found[0] = torch.where(expected[1] > 0, found[0], expected[0])
    return (found == expected).to(dtype), torch.ones(found.shape, dtype=torch.float64)


def masked(size: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Forbidden tokens of two rows are -inf, and a NaN stays."""
    logits = torch.randn(5, size)
    logits[3, 7] = float("nan")
    is_allowed = torch.rand(2, -(-size // 32) * 32) < 0.5
    is_allowed[1, 7] = False
    allowed = torch.from_numpy(np.packbits(is_allowed.numpy(), axis=1, bitorder="little").view(np.int32))
    expected = logits.clone()
    expected[[1, 3]] += torch.where(is_allowed[:, :size], 0.0, float("-inf"))
    found = logits.to(device)
    kernel.forbid(found, torch.tensor([1, 3], device=device), allowed.to(device))
    is_same = torch.isclose(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    return is_same.to(dtype), torch.ones(is_same.shape, dtype=torch.float64)


def launched(num_rows: int, size: int, dtype: torch.dtype) -> Tensor:
    logits, words = torch.zeros(num_rows, size), torch.zeros(num_rows, 8, dtype=torch.int32)
    allowed = torch.zeros(num_rows, size // 32, dtype=torch.int32)
    kernel.forbid(logits, torch.arange(num_rows, dtype=torch.int32), allowed)
    return kernel.sample(logits, words, has_random=True, has_top_k=True, has_top_p=True)


GREEDY: dict[str, float] = {"temperature": 0}
PLAIN: dict[str, float] = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
CASES = Cases(
    [
        *(Value(f"{size} tokens", partial(value, size, {})) for size in SIZES),
        Value("greedy", partial(value, SIZES[0], GREEDY)),
        Value("without filters", partial(value, SIZES[-1], PLAIN)),
        Value("forbidden", partial(masked, SIZES[-1])),
    ],
    [Launch("64 rows of 152,000", partial(launched, 64, 152_000), narrow=("_forbid",))],
)
