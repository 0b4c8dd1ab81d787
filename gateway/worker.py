"""`python -m gateway.worker`: one gateway worker; what it reads from stdin is in supervisor_pipes.py.

SIGTERM drains: it exits when its streams have finished or the drain timeout has passed. It exits at once on a
second SIGTERM, or when stdin closes because the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Generator

import msgspec
import uvicorn
import uvloop
from starlette.types import ASGIApp, Message

from backend.errors import CheckpointError
from gateway.app import build_app
from gateway.log import configure_logging
from gateway.processes.managed_process import EXIT_CANNOT_SERVE
from gateway.processes.supervisor_pipes import SupervisorPipes
from gateway.settings import Settings, SettingsError
from gateway.telemetry.errors import TelemetryError
from gateway.web.http_protocol import HttpProtocol
from policies.document import Policies

READY_POLL_S = 0.05
KEEP_ALIVE_S = 75
"""Longer than a load balancer's usual 60 s, so that we never close a connection it is about to reuse."""


class WorkerConfig(msgspec.Struct, frozen=True):
    """What the supervisor sends to a worker."""

    settings: Settings
    policies: Policies
    listen_fd: int
    number: int


class _Server(uvicorn.Server):
    """uvicorn with our signal handlers: its own re-raise the signal, so that it would not exit with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
        yield

    def drain(self) -> None:
        """Stop accepting and finish open requests; a second call exits at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def main() -> int:
    """Serve until SIGTERM. Returns the exit code."""
    configure_logging()
    pipes = SupervisorPipes()
    config = msgspec.json.decode(pipes.read_line(), type=WorkerConfig)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(config, pipes))
        except (CheckpointError, SettingsError, TelemetryError) as error:
            sys.stderr.write(f"{error}\n")
            return EXIT_CANNOT_SERVE
    return 0


async def _serve(config: WorkerConfig, pipes: SupervisorPipes) -> None:
    app = build_app(config.settings, config.policies, statuses=pipes.statuses, worker=config.number)
    server = _Server(_uvicorn_config(app, config.settings))
    loop = asyncio.get_running_loop()
    loop.add_reader(pipes.stdin_fd, _on_stdin, server, pipes)
    announcement = asyncio.create_task(_announce(app, pipes))
    await server.serve(sockets=[socket.socket(fileno=config.listen_fd)])
    announcement.cancel()


def _uvicorn_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="on",
        http=HttpProtocol,
        ws="none",
        log_config=None,
        access_log=settings.access_log,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
    )


def _on_stdin(server: _Server, pipes: SupervisorPipes) -> None:
    """Exit at once when the supervisor's pipe has closed: it is gone, and would send no signal."""
    if not pipes.receive():
        asyncio.get_running_loop().remove_reader(pipes.stdin_fd)
        server.drain()
        server.drain()


async def _announce(app: ASGIApp, pipes: SupervisorPipes) -> None:
    """Report readiness to the supervisor, which then shows its banner."""
    while not await _is_ready(app):
        await asyncio.sleep(READY_POLL_S)
    pipes.report("ready")


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
