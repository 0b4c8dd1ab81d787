"""The files of training commands: JSON lines, and what is wrong with them in one line."""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.classifiers.weights import WeightsError
from backend.errors import CheckpointError

EXIT_USAGE, EXIT_INTERRUPTED, EXIT_CLOSED_PIPE = 2, 130, 141


class RowsError(Exception):
    """A training file cannot be used; the message names file and line."""


class Row(dict[str, Any]):
    """One line of a file. A column that it lacks is a RowsError, not a KeyError."""

    def __init__(self, columns: dict[str, Any], place: str) -> None:
        """`place`: file and line, for errors."""
        super().__init__(columns)
        self.place = place

    def __missing__(self, column: str) -> Any:  # noqa: ANN401
        raise RowsError(f"{self.place}: no column {column!r}; it has {', '.join(self) or 'none'}")


def read_rows(path: Path) -> list[Row]:
    """JSON lines, plain or gzip; lines end at \\n only. Raises RowsError."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    except OSError as error:
        raise RowsError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise RowsError(f"{path}: neither UTF-8 text nor gzip of it: {error}") from None
    rows = [_row(line, f"{path}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows:
        raise RowsError(f"{path}: no rows; each line is a JSON object")
    return rows


def _row(line: str, place: str) -> Row:
    try:
        columns = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowsError(f"{place}: not JSON: {error}") from None
    if not isinstance(columns, dict):
        raise RowsError(f"{place}: not an object; each line is one row with its columns")
    return Row(columns, place)


def run(main: Callable[[], int | None]) -> None:
    """Run a command and exit; files that it cannot use, and Ctrl-C, end it without a traceback."""
    name = sys.modules["__main__"].__spec__
    shown = name.name.removesuffix(".__main__") if name is not None else Path(sys.argv[0]).name
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `| head`: none reads the rest, which must not be flushed when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_CLOSED_PIPE)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        sys.stderr.write(f"{shown}: {where}{error.strerror or error}\n")
    except (RowsError, WeightsError, CheckpointError) as error:
        sys.stderr.write(f"{shown}: {error}\n")
    sys.exit(EXIT_USAGE)
