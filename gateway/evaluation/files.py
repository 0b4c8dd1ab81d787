"""Atomic writes of result files, and checks of their names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from gateway.settings import SettingsError

PLOT_SUFFIXES = (".svg", ".png")


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


def check_plot(path: Path) -> None:
    """Raise SettingsError for anything that would make a plot fail, before a long evaluation starts."""
    if path.suffix not in PLOT_SUFFIXES:
        raise SettingsError(f"--plot {str(path)!r} must end in {' or '.join(PLOT_SUFFIXES)}")
    if not path.parent.is_dir():
        raise SettingsError(f"--plot {str(path)!r}: there is no folder {str(path.parent)!r}; create it first")
    if path.is_dir():
        raise SettingsError(f"--plot {str(path)!r} is a folder; name a file in it")
    if find_spec("matplotlib") is None:
        raise SettingsError("--plot needs matplotlib, which is not installed: pip install 'penstock[plots]'")
