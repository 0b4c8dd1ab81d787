"""What the connections of one worker's HTTP server share."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.types import ASGIApp

from gateway.settings import HttpLimits

STOP = "penstock.stop"
"""Key in a scope of the event that is set when the server drains: what has no end of its own waits for it."""


class OpenConnection(Protocol):
    """A client's connection, as the server that watches it sees it."""

    def check_deadline(self, tick_s: float) -> None:
        """Act on what takes too long."""
        ...

    def shut_down(self) -> None:
        """Close when the requests that have arrived are answered."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class ServerState:
    """Limits, time and open work; connections read it, the server changes it."""

    def __init__(self, app: ASGIApp, limits: HttpLimits, *, has_access_log: bool = False) -> None:
        self.app = app
        self.limits = limits
        self.has_access_log = has_access_log
        self.connections: set[OpenConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.now_s = 0.0
        """Time in ticks: while this process is paused, clients cannot be late."""
        self.date_header = b""
        self.is_draining = False
        self.stop = asyncio.Event()  # set once it drains
        self.is_leaving = False  # it drains soon: connections end with the answer that they have
