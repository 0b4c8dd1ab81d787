"""`penstock --version`."""

from __future__ import annotations

import argparse
import sys

DISTRIBUTION = "penstock"


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add `--version`."""
    parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="show the version of Penstock and exit"
    )


class _ShowVersion(argparse.Action):
    """Reads the distribution's metadata only when asked: other commands start without it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata  # here: slow to import

        try:
            version = metadata.version(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            parser.exit(2, f"{parser.prog}: runs from a folder that was not installed: pip install it\n")
        sys.stdout.write(f"{parser.prog} {version}\n")
        parser.exit()
