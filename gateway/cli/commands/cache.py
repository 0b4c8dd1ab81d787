"""`penstock cache`: what the semantic cache makes of two prompts."""

from __future__ import annotations

import argparse
import contextlib
import sys

from gateway.cli.policy_folder import add_policy_folder, policy_folder


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    cache = commands.add_parser("cache", help="say why two prompts do or do not share an answer")
    cache.set_defaults(run=run)
    actions = cache.add_subparsers(title="actions", required=True, metavar="ACTION")
    explaining = actions.add_parser("explain", help="compare two prompts as the semantic cache does")
    arg = explaining.add_argument
    arg("asked", help="the prompt that is asked now")
    arg("known", help="the prompt whose answer is stored")
    add_policy_folder(explaining)
    arg(
        "--max-error-rate",
        type=_error_rate,
        metavar="SHARE",
        help="above 0, at most 0.5; default: that of the policies' section `cache`",
    )
    arg("--after", action="append", default=[], metavar="TURN", help="the turn before both; repeatable")
    arg("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the explanation. Raises PolicyError, SettingsError, WeightsError, CheckpointError."""
    from gateway.cli.cache import explain, show

    folder = policy_folder(options, "penstock cache explain ASKED KNOWN")
    found = explain(options.asked, options.known, folder, options.max_error_rate, options.after)
    show(found, sys.stdout, as_json=options.json)
    return 0


def _error_rate(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) <= 0.5:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and at most 0.5")
