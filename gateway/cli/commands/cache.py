"""`penstock cache`: what the semantic cache makes of two prompts; forgets answers of a gateway."""

from __future__ import annotations

import argparse
import contextlib
import sys

from gateway.cli.gateway_flags import add_gateway_flags, gateway_of
from gateway.cli.policy_folder import add_policy_folder, policy_folder

TIMEOUT_S = 60.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    cache = commands.add_parser("cache", help="say why two prompts share an answer; forget stored answers")
    cache.set_defaults(run=run)
    actions = cache.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    explaining = actions.add_parser("explain", help="compare two prompts as the semantic cache does")
    explaining.set_defaults(needs=["semantic"])
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
    _add_invalidate(actions.add_parser("invalidate", help="have a running gateway forget stored answers"))


def _add_invalidate(invalidate: argparse.ArgumentParser) -> None:
    which = invalidate.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="answers of this model")
    which.add_argument("--tag", help="answers to requests with this tag")
    which.add_argument("--user", help="answers to this `safety_identifier` or `user`")
    which.add_argument("--entry", help="the answer of this header x-penstock-cache-entry")
    which.add_argument("--tenant", help="all answers of this tenant")
    invalidate.add_argument("--all-tenants", action="store_true", help="of every tenant, for operators")
    add_gateway_flags(invalidate)


def run(options: argparse.Namespace) -> int:
    """Do the action. Raises PolicyError, SettingsError, WeightsError, CheckpointError."""
    if options.action == "invalidate":
        return _invalidate(options)
    from gateway.cli.explain_cache import explain, show

    folder = policy_folder(options, "penstock cache explain ASKED KNOWN")
    found = explain(options.asked, options.known, folder, options.max_error_rate, options.after)
    show(found, sys.stdout, as_json=options.json)
    return 0


def _invalidate(options: argparse.Namespace) -> int:
    from gateway.cli.connection import Connection

    kinds = ("model", "tag", "user", "entry", "tenant")
    body = {kind: getattr(options, kind) for kind in kinds if getattr(options, kind) is not None}
    connection = Connection(*gateway_of(options), TIMEOUT_S)
    found = connection.call("POST", "/v1/cache/invalidate", body | {"all_tenants": options.all_tenants})
    sys.stdout.write(f"{found['invalidated']} stored answers are forgotten\n")
    return 0


def _error_rate(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) <= 0.5:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and at most 0.5")
