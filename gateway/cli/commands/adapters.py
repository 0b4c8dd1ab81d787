"""`penstock adapters`: lists, loads and unloads the adapters of a running gateway."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.gateway_flags import add_gateway_flags, gateway_of


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    adapters = commands.add_parser("adapters", help="list, load and unload adapters of a running gateway")
    adapters.set_defaults(run=run)
    actions = adapters.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list loaded adapters and their base models")
    load = actions.add_parser("load", help="load an adapter, or reload it")
    unload = actions.add_parser("unload", help="unload an adapter; running requests finish")
    for action in (load, unload):
        action.add_argument("name")
        action.add_argument("--base", help="base model, required when several engines run")
    load.add_argument("path", help="absolute folder on the gateway's machine, or builtin:NAME")
    load.add_argument("--force", action="store_true", help="load it even if it names another base model")
    for action in (listing, load, unload):
        add_gateway_flags(action)


def run(options: argparse.Namespace) -> int:
    """Do the action. Raises SettingsError."""
    from gateway.cli.manage_adapters import AdapterCommand

    command = AdapterCommand(*gateway_of(options), sys.stdout)
    if options.action == "load":
        return command.load(options.name, options.path, options.base, force=options.force)
    return command.unload(options.name, options.base) if options.action == "unload" else command.list()
