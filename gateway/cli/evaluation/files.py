"""Results on disk: the old file or the whole new one, never a part."""

from __future__ import annotations

from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write beside the file, then take its place. Raises OSError."""
    if path.exists() and not path.is_file():  # a pipe or a device stays what it is
        path.write_bytes(data)
        return
    target = path.resolve()  # a link stays one, too
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
