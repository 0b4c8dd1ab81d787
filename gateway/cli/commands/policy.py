"""`penstock policy`: the policies of a folder, or of a running gateway."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.gateway_flags import add_gateway_flags, gateway_of
from gateway.cli.policy_folder import add_policy_folder, policy_folder


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    policy = commands.add_parser("policy", help="show policies; reload or roll back those of a gateway")
    policy.set_defaults(run=run)
    actions = policy.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print a folder's policies as one document, with every default")
    add_policy_folder(show)
    for name, text in (
        ("versions", "print the versions that a running gateway has served"),
        ("reload", "have a running gateway read its policies again"),
        ("rollback", "have a running gateway serve the version before"),
    ):
        add_gateway_flags(actions.add_parser(name, help=text))


def run(options: argparse.Namespace) -> int:
    """Do the action. Raises SettingsError or PolicyError."""
    if options.action == "show":
        from policies.load import load_policies
        from policies.show import shown

        sys.stdout.write(shown(load_policies(policy_folder(options, "penstock policy show"))))
        return 0
    from gateway.cli.manage_policies import manage_policies

    return manage_policies(options.action, *gateway_of(options), sys.stdout)
