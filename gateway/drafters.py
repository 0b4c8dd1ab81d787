"""Where the weights of an engine's drafters lie on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backend.speculative.folders import MODEL_DRAFTERS, check_folder, default_folder
from gateway.checkpoints import checkpoint_folder
from policies.document import DrafterEntry, EngineModel


def drafter_folders(engine: EngineModel) -> dict[str, Path]:
    """By name: those that the policy lists, and the one that it chooses. Raises CheckpointError."""
    speculative = engine.speculative
    entries: dict[str, DrafterEntry | None] = msgspec.structs.asdict(speculative.drafters)
    if speculative.drafter in MODEL_DRAFTERS and entries[speculative.drafter] is None:
        entries[speculative.drafter] = DrafterEntry()
    checkpoint = checkpoint_folder(engine.checkpoint)
    return {name: _folder(name, entry, checkpoint) for name, entry in entries.items() if entry is not None}


def check_drafters(engine: EngineModel) -> None:
    """Raise CheckpointError unless all weights are there and go with the checkpoint."""
    for name, folder in drafter_folders(engine).items():
        check_folder(name, checkpoint_folder(engine.checkpoint), folder)


def _folder(name: str, entry: DrafterEntry, checkpoint: Path) -> Path:
    if entry.path is None:
        return default_folder(name, checkpoint)
    return checkpoint_folder(entry.path)
