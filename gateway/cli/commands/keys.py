"""`penstock keys`: API keys for clients, and their ids."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = """
A key that the policies give to no tenant is one of its own, named `key-` and the first 8 hex digits of the
key's SHA-256: so it is written in `tenants`, `admin.principals` and `operators`, in traces and in decision
logs. The id tells nothing about the key.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    keys = commands.add_parser("keys", help="print the ids of API keys; make a key")
    keys.description = DESCRIPTION
    keys.set_defaults(run=run)
    actions = keys.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    ids = actions.add_parser("id", help="print the id of each key")
    ids.description = "A key is never an argument, which `ps` would show."
    ids.add_argument(
        "--stdin", action="store_true", help="one key a line; default: $PENSTOCK_API_KEYS, else ask for one"
    )
    actions.add_parser("new", help="make a random key, and print it with its id")


def run(options: argparse.Namespace) -> int:
    """Print ids, or a new key. Raises SettingsError."""
    from gateway.cli.print_keys import given_keys, print_ids, print_new

    if options.action == "new":
        return print_new(sys.stdout)
    return print_ids(given_keys(from_stdin=options.stdin), sys.stdout)
