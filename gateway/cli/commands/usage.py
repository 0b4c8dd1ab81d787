"""`penstock usage`: what requests came to, by tenant, model, day and more."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.gateway_flags import add_gateway_flags

DESCRIPTION = """
Sums over the requests of known callers: of the key's tenant, or of all tenants for those in the policies'
`admin.principals` and where no key is configured. Asks a running gateway; with --data-dir, reads its file.
"""
WHEN = "a duration such as 7d, a day such as 2026-11-01, or a time with its zone"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    usage = commands.add_parser("usage", help="show requests, tokens and cost by tenant, model, day")
    usage.description = DESCRIPTION
    usage.set_defaults(run=run)
    groups = "tenant, model, route, endpoint, key, user, status, hour, day, month"
    usage.add_argument(
        "--by", default="tenant,model", metavar="GROUPS", help=f"some of {groups}; default: tenant,model"
    )
    usage.add_argument("--since", default="30d", metavar="WHEN", help=f"{WHEN}; default: 30d")
    usage.add_argument("--until", metavar="WHEN", help="likewise, not included; default: now")
    for name in ("tenant", "model"):
        usage.add_argument(f"--{name}", metavar="NAME", help=f"only requests of this {name}")
    usage.add_argument("--csv", metavar="FILE", help="write CSV to this file; - for the terminal")
    usage.add_argument("--data-dir", metavar="DIR", help="read the file of this folder instead")
    add_gateway_flags(usage)


def run(options: argparse.Namespace) -> int:
    """Print the table. Raises SettingsError."""
    from gateway.cli.print_usage import from_folder, from_gateway, print_usage

    names = ("by", "since", "until", "tenant", "model")
    asked = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    found = from_folder(options.data_dir, asked) if options.data_dir else from_gateway(options, asked)
    return print_usage(found, options.csv, sys.stdout)
