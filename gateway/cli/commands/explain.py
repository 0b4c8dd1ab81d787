"""`penstock explain`: which rule and model a request gets, or a recorded one got, and why."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.policy_folder import add_policy_folder, policy_folder


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    explain = commands.add_parser("explain", help="say which rule and model a request gets, and why")
    add_policy_folder(explain)
    which = explain.add_mutually_exclusive_group(required=True)
    which.add_argument("-d", "--data", metavar="JSON", help="request body; @FILE reads a file")
    which.add_argument("--id", metavar="ID", help="x-request-id or trace id of a request in --log")
    explain.add_argument("--log", type=Path, metavar="FILE", help="default $PENSTOCK_DECISION_LOG")
    explain.add_argument(
        "-H", "--header", action="append", default=[], metavar="HEADER", help="'NAME: VALUE'"
    )
    explain.add_argument(
        "--tenant",
        default="default",
        help="its name, or key-XXXXXXXX as `penstock keys id` prints it; default: default",
    )
    explain.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the explanation. Raises SettingsError or PolicyError."""
    from gateway import settings
    from gateway.cli.explain_decisions import explain_recorded, explain_request

    folder = policy_folder(options, "penstock explain")
    if options.id is not None:
        return explain_recorded(folder, options.log or settings.decision_log(), options.id, sys.stdout)
    return explain_request(folder, options.data, options.header, options.tenant, sys.stdout)
