"""`penstock init`: writes a first policy folder, from questions or flags."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DESCRIPTION = """
Writes a policy folder with comments and probes that passes `penstock check`. On a terminal and without flags
it asks; with any flag it asks nothing. It overwrites nothing, and no key is ever written into a file: models
name the variable that holds theirs, tenants the ids of theirs.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    init = commands.add_parser("init", help="write a first policy folder, from questions or flags")
    init.description = DESCRIPTION
    init.set_defaults(run=run)
    arg = init.add_argument
    arg(
        "folder", type=Path, nargs="?", default=Path("my-policies"), metavar="DIR", help="default my-policies"
    )
    arg(
        "--embedded",
        action=argparse.BooleanOptionalAction,
        help="serve pico-small and pico-large; default: only without other models",
    )
    arg(
        "--model",
        action="append",
        default=[],
        metavar="NAME=CHECKPOINT_DIR",
        help="run this checkpoint; may be repeated",
    )
    arg(
        "--upstream",
        action="append",
        default=[],
        metavar="NAME=BASE_URL[#MODEL]",
        help="a model of an API, as for `serve`; may be repeated",
    )
    arg(
        "--key-env",
        action="append",
        default=[],
        metavar="UPSTREAM=VARIABLE",
        help="the variable that holds its key; default: by the service's or model's name; empty: none",
    )
    arg(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME[=KEY_ID]",
        help="who may call; without the id of a key (`penstock keys id`) a key is made and shown once; "
        "may be repeated; default: this machine, without keys",
    )
    arg(
        "--cache", choices=("none", "exact", "semantic"), help="which answers are served again, default exact"
    )
    arg(
        "--guardrails",
        choices=("none", "mask", "strict"),
        help="mask: personal data; strict: also refuse attacks and flag harm; default mask",
    )
    arg("-y", "--yes", action="store_true", help="ask nothing, take the defaults")


def run(options: argparse.Namespace) -> int:
    """Ask or read the flags, and write the folder. Raises SettingsError."""
    from gateway.cli.init.command import init

    return init(options, sys.stdout)
