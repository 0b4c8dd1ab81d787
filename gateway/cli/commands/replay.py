"""`penstock replay`: what changed policies would have decided about recorded requests."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.policy_folder import add_policy_folder, policy_folder


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    replay = commands.add_parser("replay", help="decide about recorded requests with other policies")
    add_policy_folder(replay, "the changed policies")
    replay.add_argument("--log", type=Path, metavar="FILE", help="default $PENSTOCK_DECISION_LOG")
    replay.add_argument("--since", metavar="TIME", help="only the last 90m, 1h, 7d")
    replay.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the differences. Raises SettingsError or PolicyError."""
    from gateway import settings
    from gateway.cli.replay_decisions import replay_log

    folder = policy_folder(options, "penstock replay", is_required=True)
    return replay_log(folder, options.log or settings.decision_log(), sys.stdout, options.since)
