"""`penstock keys`: API keys for clients, and their ids."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = """
A key that the policies give to no tenant is one of its own, named `key-` and the first 8 hex digits of the
key's SHA-256: so it is written in `tenants`, `admin.principals` and `operators`, in traces and in decision
logs. The id tells nothing about the key. A key of the keys file keeps its id when it is rotated.
"""
NEW = "Its SHA-256 is added to the keys file; gateways know it a second later. Without one nothing keeps it."
LIST = "Keys of the keys file; those that have ended stay in it."
REVOKE = "All keys with the id are refused from now on; requests that run end as they began."
ROTATE = "Policies name the new key as they named the old one, which is good for a while yet."
WHEN = "a duration such as 90d, a day, or a time with its zone"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    keys = commands.add_parser("keys", help="make, list, revoke and rotate API keys; print their ids")
    keys.description = DESCRIPTION
    keys.set_defaults(run=run)
    actions = keys.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    ids = actions.add_parser("id", help="print the id of each key")
    ids.description = "A key is never an argument, which `ps` would show."
    ids.add_argument(
        "--stdin", action="store_true", help="one key a line; default: $PENSTOCK_API_KEYS, else ask for one"
    )
    new = _action(actions, "new", "make a random key, and print it with its id", NEW)
    new.add_argument(
        "--tenant", default="", metavar="NAME", help="default: what the policies say, else its id"
    )
    new.add_argument("--expires", default="", metavar="WHEN", help=WHEN)
    new.add_argument("--note", default="", metavar="TEXT", help="for `penstock keys list`")
    _action(actions, "list", "print the ids of the file's keys, and until when they are good", LIST)
    revoke = _action(actions, "revoke", "end a key now", REVOKE)
    revoke.add_argument("id", metavar="KEY_ID")
    rotate = _action(actions, "rotate", "replace a key by a new one with its id", ROTATE)
    rotate.add_argument("id", metavar="KEY_ID")
    rotate.add_argument(
        "--grace", default="24h", metavar="TIME", help="how long the old one is good; default: 24h"
    )
    rotate.add_argument("--expires", default="", metavar="WHEN", help=f"{WHEN}; default: as before")


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str, description: str
) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=what)
    action.description = description
    action.add_argument("--file", metavar="FILE", help="the keys file; default: $PENSTOCK_KEYS_FILE")
    return action


def run(options: argparse.Namespace) -> int:
    """Print ids, or change the keys file. Raises SettingsError."""
    from gateway import settings
    from gateway.cli import edit_keys, print_keys

    if options.action == "id":
        return print_keys.print_ids(print_keys.given_keys(from_stdin=options.stdin), sys.stdout)
    path, out = options.file or settings.keys_file(), sys.stdout
    if options.action == "new":
        fields = {name: getattr(options, name) for name in ("tenant", "expires", "note")}
        if path or any(fields.values()):
            return edit_keys.add_key(_named(path), out, **fields)
        return print_keys.print_new(out)
    if options.action == "list":
        return edit_keys.list_keys(_named(path), out)
    if options.action == "revoke":
        return edit_keys.revoke_key(_named(path), out, options.id)
    return edit_keys.rotate_key(_named(path), out, options.id, grace=options.grace, expires=options.expires)


def _named(path: str) -> str:
    from gateway import settings

    if not path:
        raise settings.SettingsError("there is no keys file: set PENSTOCK_KEYS_FILE, or name one with --file")
    return path
