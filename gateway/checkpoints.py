"""Where a checkpoint named in the policies lies on disk."""

from __future__ import annotations

from pathlib import Path

from backend.errors import CheckpointError

BUILTIN_FOLDER = Path(__file__).parents[1] / "backend" / "pico" / "weights"
_PREFIX = "builtin:"


def checkpoint_folder(checkpoint: str) -> Path:
    """Return the folder of an engine's checkpoint, `builtin:NAME` or a path. Raises CheckpointError."""
    if not checkpoint.startswith(_PREFIX):
        folder = Path(checkpoint).expanduser().resolve()
        if not folder.is_dir():
            raise CheckpointError(
                f"checkpoint {str(folder)!r} is not a folder: give the folder that holds config.json"
            )
        return folder
    name = checkpoint.removeprefix(_PREFIX)
    # Beside the checkpoints lie folders of other weights, which no engine can serve alone.
    known = sorted(path.parent.name for path in BUILTIN_FOLDER.glob("*/config.json"))
    if name not in known:
        raise CheckpointError(f"no checkpoint {checkpoint!r} ships with Penstock; known: {', '.join(known)}")
    return BUILTIN_FOLDER / name
