"""The flags of `penstock cache`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from gateway import settings


def add_cache(cache: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = cache.add_subparsers(title="actions", required=True, metavar="ACTION")
    explaining = actions.add_parser("explain", help="compare two prompts as the semantic cache does")
    add = explaining.add_argument
    add("asked", help="the prompt that is asked now")
    add("known", help="the prompt whose answer is stored")
    add("--policies", type=Path, metavar="DIR", help="policy folder, default $PENSTOCK_POLICIES")
    add(
        "--max-error-rate",
        type=_error_rate,
        metavar="SHARE",
        help="above 0, at most 0.5; default: that of the policies' section `cache`",
    )
    add("--after", action="append", default=[], metavar="TURN", help="the turn before both; repeatable")
    add("--json", action="store_true", help="print one JSON object")
    explaining.set_defaults(run=_explain)


def _error_rate(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) <= 0.5:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and at most 0.5")


def _explain(options: argparse.Namespace) -> int:
    from gateway.cli.cache import explain, show  # here: its imports would slow down the other commands

    folder = options.policies or settings.default_policies()
    found = explain(options.asked, options.known, folder, options.max_error_rate, options.after)
    show(found, sys.stdout, as_json=options.json)
    return 0
