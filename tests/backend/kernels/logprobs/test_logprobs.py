"""Log-probabilities, ranks and normalisers against float64."""

from __future__ import annotations

import torch

from backend.kernels.logprobs import score


def test_score_with_ties_and_masked_tokens() -> None:
    logits = torch.randn(4, 33, generator=torch.Generator().manual_seed(1)) * 3
    logits[1] = logits[1].round()
    logits[2, :16] = float("-inf")
    chosen = torch.tensor([0, 7, 32, 16])
    own, ranks, normaliser = score(logits, chosen)
    exact = logits.double().log_softmax(-1).gather(1, chosen[:, None])
    torch.testing.assert_close(own.double(), exact[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normaliser.double(), logits.double().logsumexp(-1), rtol=1e-6, atol=1e-6)
    assert ranks.tolist() == [int((row > row[i]).sum()) + 1 for row, i in zip(logits, chosen, strict=True)]


def test_nan_is_seen() -> None:
    logits = torch.zeros(1, 5)
    logits[0, 3] = float("nan")
    own, _, normaliser = score(logits, torch.tensor([0]))
    assert own.isnan().all() and normaliser.isnan().all()
