"""`penstock engine`: one engine process without a gateway, for gateways on this or other machines."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    engine = commands.add_parser("engine", help="serve one model's engine to gateways elsewhere")
    engine.add_argument(
        "--policies", type=Path, metavar="DIR", help="policy folder, default $PENSTOCK_POLICIES"
    )
    engine.add_argument("--model", metavar="NAME", help="default: the only one with an engine")
    engine.add_argument(
        "--listen",
        required=True,
        metavar="ADDRESS",
        help="tcp://127.0.0.1:PORT for gateways on this machine; port 0: any free one",
    )
    engine.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Become the engine process. Raises SettingsError, PolicyError or CheckpointError."""
    from gateway import settings
    from gateway.cli.run_engine import run_engine

    return run_engine(options.policies or settings.default_policies(), options.model, options.listen)
