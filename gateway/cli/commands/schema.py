"""`penstock schema`: the JSON Schema of policy documents, or their reference page."""

from __future__ import annotations

import argparse
import sys


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    schema = commands.add_parser("schema", help="print the JSON Schema of policy documents")
    schema.add_argument("--markdown", action="store_true", help="print the reference page instead")
    schema.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print it."""
    from gateway.cli.policy_reference import reference_text
    from gateway.cli.policy_schema import schema_text

    sys.stdout.write(reference_text() if options.markdown else schema_text())
    return 0
