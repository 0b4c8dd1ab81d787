"""The files of an evaluation, --json and --plot: checked before it starts, written before its tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gateway.settings import SettingsError

PLOT_SUFFIXES = (".svg", ".png")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the results go; None where a flag is not given."""

    json_path: Path | None = None
    plot_path: Path | None = None

    def write(self, document: Mapping[str, Any], draw: Callable[[Path], None] | None = None) -> bool:
        """Write both files. False where one could not be written; the reason is on stderr.

        Print tables afterwards: a closed stdout then costs neither file.
        """
        text = json.dumps(document, indent=1, ensure_ascii=False)
        # A lone surrogate, which UTF-8 cannot encode, becomes its JSON escape.
        data = f"{text}\n".encode(errors="backslashreplace")
        json_path, plot_path = self.json_path, self.plot_path
        is_written = json_path is None or _write("--json", json_path, lambda path: write_file(path, data))
        is_drawn = plot_path is None or draw is None or _write("--plot", plot_path, draw)
        return is_written and is_drawn


def _write(flag: str, path: Path, write: Callable[[Path], None]) -> bool:
    try:
        write(path)
    except OSError as error:
        sys.stderr.write(f"penstock: {flag} {str(path)!r} cannot be written: {error.strerror}\n")
        return False
    return True


def add_output_flags(parser: argparse.ArgumentParser, what: str, drawn: str = "") -> None:
    """Declare --json, for `what` is written, and --plot where something is drawn."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what}")
    if drawn:
        parser.add_argument("--plot", type=Path, metavar="FILE", help=f"draw {drawn}: FILE.svg or FILE.png")
    else:
        parser.set_defaults(plot=None)


def read_outputs(options: argparse.Namespace) -> Outputs:
    """Raise SettingsError for anything that would make writing fail, before a long evaluation starts."""
    if options.json is not None:
        check_path("--json", options.json)
    if options.plot is not None:
        if options.plot.suffix not in PLOT_SUFFIXES:
            raise SettingsError(f"--plot {str(options.plot)!r} must end in {' or '.join(PLOT_SUFFIXES)}")
        check_path("--plot", options.plot)
        if find_spec("matplotlib") is None:
            raise SettingsError(
                "--plot needs matplotlib, which is not installed: pip install 'penstock[plots]'"
            )
    return Outputs(options.json, options.plot)


def check_path(flag: str, path: Path) -> None:
    """Raise SettingsError unless a file can be there."""
    if not path.parent.is_dir():
        raise SettingsError(f"{flag} {str(path)!r}: there is no folder {str(path.parent)!r}; create it first")
    if path.is_dir():
        raise SettingsError(f"{flag} {str(path)!r} is a folder; name a file in it")


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
