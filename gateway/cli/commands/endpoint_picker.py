"""`penstock endpoint-picker`: tells gateways of the Gateway API which endpoint gets a request."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    picker = commands.add_parser(
        "endpoint-picker",
        help="tell gateways of the Gateway API which endpoint of an InferencePool gets a request",
    )
    picker.add_argument(
        "--policies", type=Path, metavar="DIR", help="policy folder, default $PENSTOCK_POLICIES"
    )
    picker.add_argument(
        "--endpoint-port",
        type=int,
        default=8080,
        metavar="PORT",
        help="where the endpoint on each engine's host speaks HTTP, default 8080",
    )
    picker.add_argument(
        "--listen", default="0.0.0.0:9002", metavar="HOST:PORT", help="for gRPC, default 0.0.0.0:9002"
    )
    picker.add_argument("--certificate", type=Path, metavar="FILE", help="PEM; with it, gRPC is over TLS")
    picker.add_argument("--key", type=Path, metavar="FILE", help="PEM of the certificate's key")
    picker.set_defaults(run=run, needs=["engine", "grpc"])


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM. Raises SettingsError, PolicyError or CheckpointError."""
    from gateway import settings
    from gateway.cli.endpoint_picker.server import Listening, run_picker

    if (options.certificate is None) != (options.key is None):
        raise settings.SettingsError("--certificate and --key go together")
    listening = Listening(options.listen, options.certificate, options.key)
    return run_picker(options.policies or settings.default_policies(), options.endpoint_port, listening)
