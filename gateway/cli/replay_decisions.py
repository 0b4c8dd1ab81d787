"""`penstock replay`: what changed policies would have decided about recorded requests."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from gateway.cli.decision_records import records_since
from policies.load import load_policies
from router.replay import replay, report


def replay_log(folder: Path, log: Path, out: TextIO, since: str | None = None) -> int:
    """Print the differences. Raises PolicyError, or SettingsError for a log that cannot be read."""
    out.write(report(replay(records_since(log, since), load_policies(folder))))
    return 0
