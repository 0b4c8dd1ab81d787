"""`penstock serve`: the listening socket, the supervisor and the banner."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time

import msgspec

from backend.server.json_log import writes_json
from gateway.cli.start import Start
from gateway.log import configure_logging
from gateway.processes.supervisor import Supervisor
from gateway.settings import Settings, SettingsError
from policies.document import Policies

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that the kernel queues until a worker accepts them."""


def serve(start: Start) -> int:
    """Serve until a signal. Returns the exit code. Raises SettingsError when it cannot listen.

    Policies are read again when their folder or file changes, or an operator asks for it.
    """
    settings, policies = start.settings, start.policies
    configure_logging(settings.log_format)
    started_s = time.monotonic()
    listener = listen(settings.host, settings.port)
    settings = msgspec.structs.replace(settings, port=listener.getsockname()[1])

    def on_ready() -> None:
        seconds = time.monotonic() - started_s
        if writes_json():
            logger.info("serves http://%s:%d/v1 after %.1f s", settings.host, settings.port, seconds)
        else:
            _print(banner(settings, policies, seconds))

    async def run() -> int:
        more = start.load, start.folder, start.on_served
        return await Supervisor(settings, policies, listener, on_ready, *more).run()

    return asyncio.run(run())


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsError when the address is in use or not local."""
    listener = bind(host, port)
    listener.listen(BACKLOG)
    return listener


def bind(host: str, port: int, flags: str = "--host or --port") -> socket.socket:
    """A socket that does not listen yet. Raises SettingsError as `listen` does, naming `flags`."""
    listener: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another {flags}"
        ) from None
    listener.setblocking(False)
    return listener


def _print(text: str) -> None:
    """Write to stdout, unbuffered: what cannot be written must not fail again when the interpreter exits."""
    try:
        os.write(sys.stdout.fileno(), text.encode())
    except OSError as error:  # a full disk, or a pipe that has been closed
        logger.warning("cannot print the banner: %s", error)


def banner(settings: Settings, policies: Policies, seconds: float) -> str:
    """What to print once everything is ready; its curl line works as pasted."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    url = f"http://{host}:{settings.port}"
    names = ", ".join([*policies.routes, *policies.models])
    if settings.api_keys or settings.keys_file:
        more = f", and those of {settings.keys_file}" if settings.keys_file else ""
        access = f"API key required ({len(settings.api_keys)} configured{more})"
        header = "-H 'Authorization: Bearer YOUR_KEY' "
    else:
        access = "no API key configured: this machine only (--api-key KEY opens it to others)"
        header = ""
    chats = [name for name, entry in policies.models.items() if entry.kind != "encoder"]
    model = "auto" if "auto" in policies.routes else next(iter(chats), "auto")
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is 17 + 25?"}}]}}'
    ask = f"curl {url}/v1/chat/completions {header}-H 'Content-Type: application/json' -d '{body}'"
    console = f"  console {url}/console/\n" if policies.console else ""
    return (
        f"\nPenstock serves {url}/v1 after {seconds:.1f} s\n"
        f"  models  {names}\n"
        f"  access  {access}\n{console}"
        f"  try     {ask}\n\n"
    )
