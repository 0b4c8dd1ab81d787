"""The files of an evaluation, --json and --plot: checked before it starts, written before its tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gateway.evaluation.plot import Plot, draw
from gateway.settings import SettingsError

PLOT_SUFFIXES = (".svg", ".png")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the results go; None where a flag is not given."""

    json_path: Path | None = None
    plot_path: Path | None = None

    def write(self, document: Mapping[str, Any], plot: Plot | None = None) -> bool:
        """Write both files. False where one could not be written; the reason is on stderr.

        Print tables afterwards: a closed stdout then costs neither file.
        """
        text = json.dumps(document, indent=1, ensure_ascii=False)
        # A lone surrogate, which UTF-8 cannot encode, becomes its JSON escape.
        data = f"{text}\n".encode(errors="backslashreplace")
        is_written = self.json_path is None or _write("--json", self.json_path, data)
        if self.plot_path is None or plot is None:
            return is_written
        drawn = draw(plot, self.plot_path.suffix.removeprefix("."))
        return _write("--plot", self.plot_path, drawn) and is_written


def _write(flag: str, path: Path, data: bytes) -> bool:
    try:
        write_file(path, data)
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
