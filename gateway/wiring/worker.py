"""`python -m gateway.wiring.worker`: one gateway worker; what it reads from stdin is in supervisor_pipes.py.

SIGTERM drains: it exits when its streams have finished or the drain timeout has passed. It exits at once on a
second SIGTERM, or when stdin closes because the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys

import msgspec
import uvloop
from starlette.types import ASGIApp, Message

from backend.errors import CheckpointError
from gateway.log import configure_logging
from gateway.processes.managed_process import EXIT_CANNOT_SERVE
from gateway.processes.messages import Version
from gateway.processes.supervisor_pipes import SupervisorPipes
from gateway.settings import SettingsError
from gateway.telemetry.errors import TelemetryError
from gateway.web.http_server import HttpServer
from gateway.wiring.versions import Versions

READY_POLL_S = 0.05
HEARTBEAT_S = 0.5


class WorkerConfig(msgspec.Struct, frozen=True):
    """What the supervisor sends to a worker."""

    version: Version
    listen_fd: int
    number: int


GC_THRESHOLDS = (10_000, 20, 20)
"""Requests leave hardly any cycles, and a full collection reads all that was loaded: with Python's defaults a
tenth of the time went there."""


def main() -> int:
    """Serve until SIGTERM. Returns the exit code."""
    gc.set_threshold(*GC_THRESHOLDS)
    pipes = SupervisorPipes()
    config = msgspec.json.decode(pipes.read_line(), type=WorkerConfig)
    configure_logging(config.version.settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(config, pipes))
        except (CheckpointError, SettingsError, TelemetryError) as error:
            logging.getLogger(__name__).error("%s", error)
            return EXIT_CANNOT_SERVE
    return 0


async def _serve(config: WorkerConfig, pipes: SupervisorPipes) -> None:
    versions = Versions(config.version, config.number, pipes)
    settings = config.version.settings
    server = HttpServer(
        versions.app,
        settings.http,
        drain_timeout_s=settings.drain_timeout_s,
        has_access_log=settings.access_log,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.drain)
    pipes.dispatch()
    loop.add_reader(pipes.stdin_fd, _on_stdin, server, pipes, versions)
    heartbeats = asyncio.create_task(_send_heartbeats(versions))
    await server.serve(socket.socket(fileno=config.listen_fd))
    heartbeats.cancel()
    await versions.close()


def _on_stdin(server: HttpServer, pipes: SupervisorPipes, versions: Versions) -> None:
    """Exit at once when the supervisor's pipe has closed: it is gone, and would send no signal."""
    if not pipes.receive():
        asyncio.get_running_loop().remove_reader(pipes.stdin_fd)
        server.drain()
        server.drain()
    server.state.is_leaving = versions.state.is_leaving


async def _send_heartbeats(versions: Versions) -> None:
    """Tell the supervisor that the event loop runs, and when all models are ready: it prints a banner."""
    while not await _is_ready(versions.app):
        versions.report()
        await asyncio.sleep(READY_POLL_S)
    versions.phase = "ready"
    while True:
        versions.report()
        await asyncio.sleep(HEARTBEAT_S)


async def _is_ready(app: ASGIApp) -> bool:
    """Probe /health/ready in process, without a connection."""
    statuses: list[int] = []

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    async def receive() -> Message:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/health/ready", "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return statuses[0] == 200


if __name__ == "__main__":
    sys.exit(main())
