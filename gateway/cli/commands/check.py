"""`penstock check`: validates a policy folder and the files that it names."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    check = commands.add_parser(
        "check", help="validate a policy folder and the configuration of its checkpoints and adapters"
    )
    check.add_argument("policies", type=Path, metavar="DIR")
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what the folder defines, without secrets. Raises PolicyError with every problem."""
    from gateway import settings
    from gateway.cli.check_policies import check
    from gateway.log import hide, without_hidden

    hide(settings.environment_secrets())
    found = io.StringIO()
    try:
        return check(options.policies, found)
    finally:
        sys.stdout.write(without_hidden(found.getvalue()))
