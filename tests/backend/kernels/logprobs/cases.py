"""Log-probabilities in Triton."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from backend.kernels.logprobs.kernel import score
from tests.backend.kernels.cases import Cases, Launch, Value


def value(size: int, part: str, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Flat and steep rows, with ties and masked tokens."""
    logits = torch.randn(5, size).to(dtype).float() * torch.tensor([0.1, 1, 5, 30, 1])[:, None]
    logits[1] = logits[1].round()
    logits[2, : size // 2] = float("-inf")
    logits[4] -= 1e3
    chosen = torch.tensor([0, 7, size - 1, size // 2, 3])
    exact = logits.double()
    own, normaliser = exact.gather(1, chosen[:, None]), exact.logsumexp(-1)
    expected = {"log p": own[:, 0] - normaliser, "rank": (exact > own).sum(-1) + 1.0, "sum": normaliser}
    found = dict(zip(("log p", "rank", "sum"), score(logits.to(device), chosen.to(device)), strict=True))
    return found[part].cpu().to(dtype), expected[part].to(torch.float64)


def launched(dtype: torch.dtype) -> object:
    return score(torch.zeros(8, 152_000), torch.zeros(8, dtype=torch.int64))


CASES = Cases(
    [
        Value(f"{part} of {size} tokens", partial(value, size, part))
        for size in (199, 5003)
        for part in ("log p", "rank", "sum")
    ],
    [Launch("8 rows of 152,000", launched)],
)
