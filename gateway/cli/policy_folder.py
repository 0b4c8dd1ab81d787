"""The policy folder of a command: its last argument everywhere but for `serve` and `batch`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def add_policy_folder(
    parser: argparse.ArgumentParser, text: str = "policy folder, default $PENSTOCK_POLICIES"
) -> None:
    """Declare DIR, and its earlier spelling `--policies DIR`."""
    parser.add_argument("policy_folder", type=Path, nargs="?", metavar="DIR", help=text)
    parser.add_argument("--policies", type=Path, dest="flagged_folder", help=argparse.SUPPRESS)


def take_folder(options: argparse.Namespace, rest: Sequence[str]) -> Sequence[str]:
    """The arguments that are left when a DIR behind the flags is taken, which argparse leaves over."""
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(options, "policy_folder", "") is None:
        options.policy_folder = Path(rest[0])
        return ()
    return rest


def given_folder(options: argparse.Namespace, command: str) -> Path | None:
    """The folder; None without one. The earlier spelling is told to stderr. Raises SettingsError."""
    folder: Path | None = options.policy_folder
    flagged: Path | None = options.flagged_folder
    if flagged is None:
        return folder
    if folder is not None:
        from gateway.settings import SettingsError

        raise SettingsError(f"the policy folder is given twice: leave out --policies {str(flagged)!r}")
    sys.stderr.write(f"penstock: --policies goes away in the next release: write `{command} {flagged}`\n")
    return flagged


def policy_folder(options: argparse.Namespace, command: str, *, is_required: bool = False) -> Path:
    """The folder, or the default one. Raises SettingsError, without one where `is_required`."""
    from gateway import settings

    folder = given_folder(options, command)
    if folder is None and is_required:
        raise settings.SettingsError(f"name the policy folder: `{command} DIR`")
    return folder or settings.default_policies()
