"""`penstock top`: what a running gateway does now, in the terminal."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.gateway_flags import add_gateway_flags

DESCRIPTION = """
Engines, upstream targets and workers of a running gateway, once a second, until Ctrl-C. The key must be of
one of the policies' `admin.principals`; a gateway without keys answers to its own machine. Connects again
when the gateway has restarted.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    top = commands.add_parser("top", help="watch engines, upstreams and workers of a running gateway")
    top.description = DESCRIPTION
    top.set_defaults(run=run)
    top.add_argument("--once", action="store_true", help="print one snapshot; so does a pipe without --json")
    top.add_argument("--json", action="store_true", help="print each snapshot as a line of JSON")
    add_gateway_flags(top)


def run(options: argparse.Namespace) -> int:
    """Watch. Raises SettingsError."""
    from gateway.cli.connection import Connection
    from gateway.cli.gateway_flags import gateway_of
    from gateway.cli.watch_live import TIMEOUT_S, watch

    url, key = gateway_of(options)
    is_once = options.once or not (options.json or sys.stdout.isatty())
    return watch(lambda: Connection(url, key, TIMEOUT_S), sys.stdout, is_once=is_once, is_json=options.json)
