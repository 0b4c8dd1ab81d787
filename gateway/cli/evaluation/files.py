"""Atomic writes of result files."""

from __future__ import annotations

from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write a temporary file next to the target and rename it over the target. Raises OSError."""
    if path.exists() and not path.is_file():  # do not replace a pipe or a device
        path.write_bytes(data)
        return
    target = path.resolve()  # keep a symbolic link
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
