"""Checkpoint file of a training run, from which a killed run resumes; shared by all trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_FILE = "checkpoint.pt"


def write(folder: Path, state: Mapping[str, Any]) -> None:
    """Replace the run's checkpoint atomically."""
    part = folder / f"{_FILE}.part"
    torch.save(dict(state), part)
    part.replace(folder / _FILE)


def read(folder: Path) -> dict[str, Any] | None:
    """Return the run's last state, or None if it has no checkpoint."""
    path = folder / _FILE
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def states_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Return the optimizers' state for a checkpoint."""
    return [optimizer.state_dict() for optimizer in optimizers]


def restore(optimizers: Sequence[torch.optim.Optimizer], states: Sequence[dict[str, Any]]) -> None:
    """Restore what `states_of` returned for the same number of optimizers."""
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict(state)
