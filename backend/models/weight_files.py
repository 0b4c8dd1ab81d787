"""Finds a checkpoint's safetensors files, one or sharded with an index, without opening them."""

from __future__ import annotations

import json
from pathlib import Path

from backend.errors import CheckpointError

_INDEX = "model.safetensors.index.json"


def weight_files(directory: Path) -> list[Path]:
    """The files with the weights: those of the index, else model.safetensors, else all safetensors files."""
    index = directory / _INDEX
    if index.exists():
        try:
            found = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            if wrong := [name for name in found if not isinstance(name, str)]:
                raise TypeError(f"'weight_map' has {wrong[0]!r}, expected names of files")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                f"{index} is not a safetensors index ({error!r}); download it again"
            ) from None
        files = [directory / name for name in sorted(found)]
    else:
        single = directory / "model.safetensors"
        files = [single] if single.exists() else sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(
            f"{directory} holds no *.safetensors file; other formats are not read, convert the checkpoint"
        )
    for path in files:
        if path.is_dir():
            raise CheckpointError(f"{path} is a folder, expected a file; download it again")
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist, but {index.name} names it; download it again")
    return files
