"""Slices that a device copies late are those that were staged, in whatever dtype and shape."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backend.config import DtypeName, EngineConfig
from backend.models import build, staging
from backend.models.loaded import load_model
from backend.models.staging import Staging, mover
from tests.backend.models.checkpoints import write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.variant import MOE, UNTIED, Variant


class LateCard:
    """Copies when it is waited for, and all that was queued before: buffers must keep what they had."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.queued: list[tuple[Tensor, Tensor]] = []
        self.num_waits = 0
        self.num_bytes = 0

    def buffer(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def copy(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        self.queued.append((target, source))
        number = self.num_bytes = self.num_bytes + len(source)

        def wait() -> None:
            self.num_waits += 1
            while self.queued and self.num_bytes - self.left() < number:
                self.run_one()

        return wait

    def left(self) -> int:
        return sum(len(source) for _, source in self.queued)

    def run_one(self) -> None:
        target, source = self.queued.pop(0)
        target.copy_(source)


class PromptCard(LateCard):
    """Copies at once, as what computes on a stream sees it."""

    def copy(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        wait = super().copy(target, source)
        self.run_one()
        return wait


TENSORS = {
    "bfloat16": torch.randn(33, 70).bfloat16(),
    "float8": torch.randn(9, 8).to(torch.float8_e4m3fn),
    "transposed": torch.randn(20, 30).T,
    "a_column": torch.arange(700).view(100, 7)[:, 3],
    "misaligned": torch.arange(257, dtype=torch.uint8)[1:].view(torch.uint8),
    "a_number": torch.tensor(3.5),
    "empty": torch.empty(0, 5),
}


def test_late_copies_have_the_bytes_that_were_staged() -> None:
    """The host waits for a buffer that it fills again, and for nothing else."""
    card = LateCard()
    staged = Staging(card, slice_bytes=64)
    found = {name: staged(tensor.clone()) for name, tensor in TENSORS.items()}
    assert len(card.queued) == 2  # both buffers are in use
    while card.queued:
        card.run_one()
    for name, expected in TENSORS.items():
        assert found[name].dtype == expected.dtype and found[name].is_contiguous(), name
        assert torch.equal(found[name].float(), expected.float()), name
    sizes = [tensor.nbytes for tensor in TENSORS.values()]
    assert card.num_bytes == sum(sizes)
    assert card.num_waits == sum(-(-size // 64) for size in sizes) - 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_model_is_the_same(tmp_path: Path, dtype: DtypeName, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(Variant("mixtral", "mixtral", {**MOE, **UNTIED}), tmp_path, torch.bfloat16)
    config = EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu", dtype=dtype)
    card, logits = PromptCard(), list[Tensor]()
    for move in (mover, lambda _: Staging(card, 1000)):
        monkeypatch.setattr(build, "mover", move)
        step = Driver(load_model(config)).step([(Track(random_tokens(20, seed=1)), 20)])
        logits.append(step[0])
    assert torch.equal(*logits)
    stored = (tmp_path / "model.safetensors").stat().st_size
    assert 0.9 * stored < card.num_bytes <= stored  # all but small vectors


def test_the_log_tells_how_much_was_copied(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staging, "_LOGGED_BYTES", 2**20)
    staged = Staging(PromptCard(), slice_bytes=2**18)
    with caplog.at_level(logging.INFO, logger="backend.models.staging"):
        for _ in range(5):
            staged(torch.zeros(2**19, dtype=torch.uint8))
    assert len(caplog.records) == 2 and "copied to cpu" in caplog.text
