from __future__ import annotations

import pytest
import torch

from backend.sampling import logprobs
from backend.sampling.logprobs import prompt_logprobs, token_logprobs


def test_equal_to_log_softmax_for_each_row() -> None:
    logits = torch.randn(3, 50)
    want = logits.log_softmax(-1)
    records = token_logprobs(logits, [4, 5, 6], [0, 2, 5])
    for row, (record, count) in enumerate(zip(records, [0, 2, 5], strict=True)):
        token = 4 + row
        assert record.token_id == token
        assert record.logprob == pytest.approx(want[row, token].item(), abs=1e-5)
        assert record.rank == 1 + int((want[row] > want[row, token]).sum())
        assert [i for i, _ in record.top] == want[row].topk(5).indices[:count].tolist()
        assert [p for _, p in record.top] == pytest.approx(
            want[row].topk(5).values[:count].tolist(), abs=1e-5
        )


def test_more_top_tokens_than_the_vocabulary_has() -> None:
    (record, none) = token_logprobs(torch.tensor([[0.0, 2.0, 1.0]] * 2), [2, 0], [5, 0])
    assert [token for token, _ in record.top] == [1, 2, 0] and record.rank == 2
    assert none.top == [] and none.rank == 3


def test_prompt_chunks_are_bounded_and_join_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "MAX_LOGITS_ELEMENTS", 4 * 20)
    hidden, weights = torch.randn(11, 8), torch.randn(8, 20)
    sizes: list[int] = []

    def logits_of(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return rows @ weights

    targets = list(range(11))
    records = prompt_logprobs(hidden, targets, 3, logits_of, 20)
    assert sizes == [4, 4, 3]
    want = (hidden @ weights).log_softmax(-1)
    assert [r.logprob for r in records] == pytest.approx([want[i, i].item() for i in targets], abs=1e-5)
    assert all(len(r.top) == 3 for r in records)
