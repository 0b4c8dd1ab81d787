"""The flags of `penstock init`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DESCRIPTION = """
Writes a policy folder with comments and probes that passes `penstock check`. On a terminal and without flags
it asks; with any flag it asks nothing. It overwrites nothing, and no key is ever written into a file: models
name the variable that holds theirs, tenants the ids of theirs.
"""


def add_init(init: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    init.description = DESCRIPTION
    add = init.add_argument
    add(
        "folder", type=Path, nargs="?", default=Path("my-policies"), metavar="DIR", help="default my-policies"
    )
    add(
        "--embedded",
        action=argparse.BooleanOptionalAction,
        help="serve pico-small and pico-large; default: only without other models",
    )
    add(
        "--model",
        action="append",
        default=[],
        metavar="NAME=CHECKPOINT_DIR",
        help="run this checkpoint; may be repeated",
    )
    add(
        "--upstream",
        action="append",
        default=[],
        metavar="NAME=BASE_URL[#MODEL]",
        help="a model of an API, as for `serve`; may be repeated",
    )
    add(
        "--key-env",
        action="append",
        default=[],
        metavar="UPSTREAM=VARIABLE",
        help="the variable that holds its key; default: by the service's or model's name; empty: none",
    )
    add(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME[=KEY_ID]",
        help="who may call; without the id of a key (`penstock keys id`) a key is made and shown once; "
        "may be repeated; default: this machine, without keys",
    )
    add(
        "--cache", choices=("none", "exact", "semantic"), help="which answers are served again, default exact"
    )
    add(
        "--guardrails",
        choices=("none", "mask", "strict"),
        help="mask: personal data; strict: also refuse attacks and flag harm; default mask",
    )
    add("-y", "--yes", action="store_true", help="ask nothing, take the defaults")
    init.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> int:
    from gateway.cli.init.command import init  # here: its imports would slow down the other commands

    return init(options, sys.stdout)
