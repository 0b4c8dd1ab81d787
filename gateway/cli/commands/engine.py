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
        help="tls://HOST:PORT, or tcp://127.0.0.1:PORT for gateways on this machine; port 0: any free one",
    )
    engine.add_argument("--certificate", type=Path, metavar="FILE", help="PEM file, for tls://")
    engine.add_argument("--key", type=Path, metavar="FILE", help="PEM file of the certificate's key")
    engine.add_argument(
        "--ca", type=Path, metavar="FILE", help="PEM file of the CAs that sign gateways' certificates"
    )
    engine.add_argument(
        "--token-env", metavar="NAME", help="the variable with the token that gateways must have"
    )
    engine.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Become the engine process. Raises SettingsError, PolicyError or CheckpointError."""
    from gateway import settings
    from gateway.cli.run_engine import Shown, run_engine

    shown = Shown(options.certificate, options.key, options.ca, options.token_env)
    return run_engine(options.policies or settings.default_policies(), options.model, options.listen, shown)
