"""`penstock batch`: answers a file of requests without a running server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.model_flags import add_model_flags


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    batch = commands.add_parser("batch", help="answer a file of requests without a running server")
    batch.add_argument("file", type=Path, metavar="FILE", help="one request per line, as for /v1/batches")
    batch.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="answers, then errors")
    add_model_flags(batch)
    batch.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Answer the file. Raises SettingsError, PolicyError or CheckpointError."""
    from gateway.cli.run_batch import run_batch
    from gateway.cli.start import prepare

    start = prepare(options, {})
    return run_batch(start.settings, start.policies, start.load, options.file, options.output, sys.stderr)
