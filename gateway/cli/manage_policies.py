"""`penstock policy versions | reload | rollback`: the policies of a running gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TextIO

from gateway.cli.connection import Connection

TIMEOUT_S = 1000.0
"""Longer than the gateway waits for the engines of a new version."""

Action = Literal["versions", "reload", "rollback"]


def manage_policies(action: Action, url: str, api_key: str, out: TextIO) -> int:
    """Do it and print the outcome. Raises SettingsError with the gateway's reason when it refuses."""
    connection = Connection(url, api_key, TIMEOUT_S)
    if action == "versions":
        found = connection.call("GET", "/admin/policies")
        out.write(versions_text(found["version"], found["previous"], found["error"]))
        return 0
    path = "/admin/policies/rollback" if action == "rollback" else "/admin/policies"
    out.write(connection.call("POST", path)["message"] + "\n")
    return 0


def versions_text(current: str, previous: Sequence[str], error: str) -> str:
    """What is served, and where rollbacks lead; the gateway lists the latest last."""
    order = "  (newest first; `penstock policy rollback` serves the first)" if len(previous) > 1 else ""
    text = f"current   {current}\nprevious  {', '.join(reversed(previous)) or 'none'}{order}\n"
    return f"{text}error     {error}\n" if error else text
