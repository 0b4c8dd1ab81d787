"""The file that a killed training run goes on from; every trainer of the family keeps one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_FILE = "checkpoint.pt"


def write(folder: Path, state: Mapping[str, Any]) -> None:
    """Replace the run's checkpoint; a kill in between leaves the previous one."""
    part = folder / f"{_FILE}.part"
    torch.save(dict(state), part)
    part.replace(folder / _FILE)


def read(folder: Path) -> dict[str, Any] | None:
    """The run's last state; None when it has none yet."""
    path = folder / _FILE
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def states_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """What a checkpoint keeps of them."""
    return [optimizer.state_dict() for optimizer in optimizers]


def restore(optimizers: Sequence[torch.optim.Optimizer], states: Sequence[dict[str, Any]]) -> None:
    """Put back what `states_of` gave for as many optimisers."""
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict(state)
