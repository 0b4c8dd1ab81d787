"""The life of an engine or encoder process: read its configuration, load, serve, drain.

`python -m MODULE --listen-fd FD [--parent-pid PID] [--door]`; the gateway's supervisor starts it, or
`penstock engine` becomes it, with a socket and a line of configuration on stdin. It prints JSON progress on
stdout and exits with 0 when it has drained after SIGTERM, 2 when the configuration cannot be served (one
sentence on stderr), 1 after any other failure.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import msgspec

from backend.errors import CheckpointError, ConfigError
from backend.server.door import Door, DoorConfig
from backend.server.json_log import LOG_FORMATS, TEXT_FORMAT, JsonFormatter, configure_root
from backend.server.server import Server

EXIT_CANNOT_SERVE = 2
_MAX_ERROR_CHARS = 600
_BACKLOG = 64
"""More than all that connect while a process starts."""

Config = TypeVar("Config")

logger = logging.getLogger(__name__)


def run_process(
    kind: str,
    config_type: type[Config],
    load: Callable[[Config], Callable[[socket.socket], Server[Any]]],
    arguments: list[str] | None = None,
) -> int:
    """Run a process of this `kind`, "engine" or "encoder"; returns the exit code.

    `load` does all that takes time, and returns how to open the server. It can fail with CheckpointError or
    ConfigError.
    """
    options = _parse(kind, arguments)
    configure_root(options.log_format, logging.Formatter(TEXT_FORMAT), JsonFormatter())
    if options.parent_pid is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; wait for SIGTERM
    try:
        config = read_config(kind, config_type, sys.stdin.buffer.readline())
        door = _read_door() if options.door else None
        report_progress("loading", 0.0)
        open_server = load(config)
    except (CheckpointError, ConfigError) as error:
        _report_failure(str(error))
        logger.error("%s", error)
        return EXIT_CANNOT_SERVE
    except Exception as error:
        _report_failure(f"{type(error).__name__}: {error}")
        raise
    try:
        listener = socket.socket(fileno=options.listen_fd)
        listener.listen(_BACKLOG)  # not before: a connection that is made is answered
        with closing(open_server(listener)) as server:
            server.door = door
            _serve(server, options.parent_pid)
    except Exception as error:  # noqa: BLE001 - the process ends; one line says why
        _report_failure(f"{type(error).__name__} while it served")  # the message might have prompt text
        logger.critical("the %s died: %s: %s", kind, type(error).__name__, error)
        return 1
    return 0


def read_config(kind: str, config_type: type[Config], line: bytes) -> Config:
    """The configuration in a line of JSON. Raises CheckpointError when it is none."""
    try:
        return msgspec.json.decode(line, type=config_type)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"stdin holds no {kind} configuration: {error}") from None


def _read_door() -> Door:
    """From the second line of stdin, which has a secret. Raises ConfigError or CheckpointError."""
    return Door(read_config("door", DoorConfig, sys.stdin.buffer.readline()))


def report_progress(phase: str, fraction: float) -> None:
    """Write one JSON line on stdout, for the process that started this one."""
    _report({"phase": phase, "fraction": round(fraction, 3)})


def _report_failure(error: str) -> None:
    """Say why the process is about to exit, in one line."""
    _report({"phase": "failed", "error": " ".join(error.split())[:_MAX_ERROR_CHARS]})


def _report(progress: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(progress) + "\n")
    sys.stdout.flush()


def _parse(kind: str, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"backend.server.{kind}_process", description=f"One {kind} process for one model."
    )
    parser.add_argument("--listen-fd", type=int, required=True, help="bound socket, inherited")
    parser.add_argument(
        "--parent-pid", type=int, help="drain and exit when this process is no longer the parent"
    )
    parser.add_argument("--door", action="store_true", help="stdin has another line: what peers must show")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text", help="of the lines on stderr")
    return parser.parse_args(arguments)


def _serve(server: Server[Any], parent_pid: int | None) -> None:
    """Serve until SIGTERM, or until the parent is gone."""

    def on_heartbeat() -> None:
        if parent_pid is not None and os.getppid() != parent_pid:
            server.stop()
        if not server.has_work:
            gc.collect()

    server.on_heartbeat = on_heartbeat
    signal.signal(signal.SIGTERM, lambda signum, frame: server.stop())
    if parent_pid is None:  # no supervisor waits for the others
        signal.signal(signal.SIGINT, lambda signum, frame: server.stop())
    # What is loaded stays: exclude it from collections. Young objects die by reference count, so rare
    # collections suffice; full ones run above, while no request waits.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    report_progress("ready", 1.0)
    try:
        server.run()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not spoil the exit code
