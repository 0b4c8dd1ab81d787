"""`penstock guardrails`: what each check makes of a text."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.policy_folder import add_policy_folder, given_folder


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    guardrails = commands.add_parser("guardrails", help="say what each check makes of a text")
    guardrails.set_defaults(run=run)
    kinds = guardrails.add_subparsers(title="what to do", required=True, metavar="ACTION")
    trying = kinds.add_parser("try", help="what each check finds in one text, and what decided")
    arg = trying.add_argument
    arg("text", help="a text, or the path of a file that holds one")
    default = "injection and harm, which need the extra `semantic`"
    add_policy_folder(trying, f"take the profile from this policy folder; default: {default}")
    arg("--profile", metavar="NAME", help="of the policies; default: their default profile")
    arg("--segment", choices=("user", "system", "tool"), default="user", help="who wrote it, default user")


def run(options: argparse.Namespace) -> int:
    """Print a line for each check. Raises SettingsError, PolicyError, WeightsError."""
    from gateway.cli.try_guardrails import try_guardrails

    options.policies = given_folder(options, "penstock guardrails try TEXT")
    return try_guardrails(options, sys.stdout)
