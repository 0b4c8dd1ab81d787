from __future__ import annotations

import pytest
import torch

from backend.sampling import download as module
from backend.sampling.download import download
from tests.backend.kernels.waits import Waits

TENSORS = [
    torch.tensor([3, 2**40 + 1]),
    torch.tensor([True, False]),
    torch.tensor([[0.1, -float("inf")], [1e-40, 2.5]]),
    torch.zeros(2, 0, dtype=torch.int64),
    torch.tensor([[7], [8]], dtype=torch.int32),
]


@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_lists_are_those_of_each_tensor(*, is_on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "uses_triton", lambda tensor: is_on_gpu)
    with Waits() as waits:
        found = download(TENSORS)
    assert repr(found) == repr([tensor.tolist() for tensor in TENSORS])
    assert waits.reads["tolist"] == (1 if is_on_gpu else len(TENSORS))
