"""Products on several threads, however small they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from backend.kernels.linear import paired


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(paired, "_ONE_THREAD", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
