"""The flags of `penstock explain`, `replay` and `policy`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway import settings
from gateway.cli.gateway_flags import add_gateway_flags, gateway_of
from policies.load import load_policies
from policies.show import shown


def add_explain(explain: argparse.ArgumentParser) -> None:
    """Add the flags of `explain`, for a request or one that was recorded."""
    which = explain.add_mutually_exclusive_group(required=True)
    which.add_argument("-d", "--data", metavar="JSON", help="request body; @FILE reads a file")
    which.add_argument("--id", metavar="ID", help="x-request-id or trace id of a request in --log")
    explain.add_argument("--log", type=Path, metavar="FILE", help="default $PENSTOCK_DECISION_LOG")
    explain.add_argument(
        "--policies", type=Path, metavar="DIR", help="policy folder, default $PENSTOCK_POLICIES"
    )
    explain.add_argument(
        "-H", "--header", action="append", default=[], metavar="HEADER", help="'NAME: VALUE'"
    )
    explain.add_argument(
        "--tenant",
        default="default",
        help="its name, or key-XXXXXXXX as `penstock keys id` prints it; default: default",
    )
    explain.set_defaults(run=_explain)


def add_replay(replay: argparse.ArgumentParser) -> None:
    """Add the flags of `replay`, which decides recorded requests again."""
    replay.add_argument("--policies", type=Path, required=True, metavar="DIR", help="the changed policies")
    replay.add_argument("--log", type=Path, metavar="FILE", help="default $PENSTOCK_DECISION_LOG")
    replay.add_argument("--since", metavar="TIME", help="only the last 90m, 1h, 7d")
    replay.set_defaults(run=_replay)


def add_policy(policy: argparse.ArgumentParser) -> None:
    """Add the actions of `policy`, on a folder or a running gateway."""
    actions = policy.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print a folder's policies as one document, with every default")
    show.add_argument(
        "policies", type=Path, nargs="?", metavar="DIR", help="policy folder, default $PENSTOCK_POLICIES"
    )
    show.set_defaults(run=_show_policies)
    for name, text in (
        ("versions", "print the versions that a running gateway has served"),
        ("reload", "have a running gateway read its policies again"),
        ("rollback", "have a running gateway serve the version before"),
    ):
        action = actions.add_parser(name, help=text)
        add_gateway_flags(action)
        action.set_defaults(run=_manage_policies, action=name)


def _manage_policies(options: argparse.Namespace) -> int:
    from gateway.cli.policy import manage_policies

    return manage_policies(options.action, *gateway_of(options), sys.stdout)


def _show_policies(options: argparse.Namespace) -> int:
    sys.stdout.write(shown(load_policies(options.policies or settings.default_policies())))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from gateway.cli.replay import replay_log

    log = options.log or settings.decision_log()
    return replay_log(options.policies, log, sys.stdout, options.since)


def _explain(options: argparse.Namespace) -> int:
    from gateway.cli.explain import explain_recorded, explain_request

    folder = options.policies or settings.default_policies()
    if options.id is not None:
        return explain_recorded(folder, options.log or settings.decision_log(), options.id, sys.stdout)
    return explain_request(folder, options.data, options.header, options.tenant, sys.stdout)
