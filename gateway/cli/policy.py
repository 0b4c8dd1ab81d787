"""`penstock policy versions | reload | rollback`: the policies of a running gateway."""

from __future__ import annotations

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
        out.write(f"current   {found['version']}\nprevious  {', '.join(found['previous']) or 'none'}\n")
        if found["error"]:
            out.write(f"error     {found['error']}\n")
        return 0
    path = "/admin/policies/rollback" if action == "rollback" else "/admin/policies"
    out.write(connection.call("POST", path)["message"] + "\n")
    return 0
