"""A checkpoint is written atomically, and restores what was saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.pico import checkpoint


def test_reading_without_a_checkpoint_returns_none(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path) is None


def test_a_failed_write_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.write(tmp_path, {"step": 1})

    def torn(state: object, path: Path) -> None:
        path.write_bytes(b"half of a")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", torn)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.write(tmp_path, {"step": 2})
    assert checkpoint.read(tmp_path) == {"step": 1}


def test_optimizers_resume_with_their_momentum(tmp_path: Path) -> None:
    def stepped(states: list[dict[str, object]] | None, steps: int) -> tuple[torch.Tensor, torch.optim.Adam]:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        if states is not None:
            checkpoint.restore([optimizer], states)
        for _ in range(steps):
            weight.grad = torch.tensor([1.0, -2.0, 3.0])
            optimizer.step()
        return weight.detach(), optimizer

    _, before = stepped(None, 3)
    checkpoint.write(tmp_path, {"optimizers": checkpoint.states_of([before])})
    state = checkpoint.read(tmp_path)
    assert state is not None
    _, resumed = stepped(state["optimizers"], 1)
    (values,) = resumed.state.values()
    assert values["step"].item() == 4
    with pytest.raises(ValueError, match="argument"):
        checkpoint.restore([resumed, resumed], state["optimizers"])
