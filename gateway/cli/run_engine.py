"""`penstock engine`: reads the policies and becomes the engine process of one model."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import msgspec

from gateway.cli.run_gateway import bind
from gateway.cli.start import check_checkpoints
from gateway.extras import require
from gateway.log import configure_logging, hide
from gateway.processes.managed_process import Command
from gateway.processes.specs import backend_command, backend_config
from gateway.settings import SettingsError, read_settings
from policies.document import Policies
from policies.engine_addresses import Address, parse_address
from policies.load import load_folder
from policies.names import nearest

logger = logging.getLogger(__name__)


def run_engine(folder: Path, model: str | None, address: str) -> NoReturn:
    """Serve the engine of `model` at `address`; its exit codes are those of backend/server/serve.py.

    Raises SettingsError, PolicyError or CheckpointError.
    """
    require("penstock engine", ["engine"])
    settings = read_settings({})
    configure_logging(settings.log_format)
    hide(settings.secrets)
    place = listen_address(address)
    policies = load_folder(folder).policies
    name = engine_of(policies, model)
    policies = _of_this_machine(policies, name)
    check_checkpoints(policies, ())
    config = backend_config(name, policies, settings)
    listener = bind(place.host, place.port)
    port = listener.getsockname()[1]
    logger.info("the engine of %r listens on %s", name, Address(place.scheme, place.host, port))
    command = backend_command(
        name, config, policies, listener.fileno(), settings.log_format, is_supervised=False
    )
    _become(command)


def engine_of(policies: Policies, model: str | None) -> str:
    """The model to serve. Raises SettingsError where it has no engine, or several have one."""
    engines = [name for name, entry in policies.models.items() if entry.engine is not None]
    if model is None and len(engines) == 1:
        return engines[0]
    if model in engines:
        return model
    if not engines:
        raise SettingsError("the policies have no model with an engine: add one to the section models")
    if model is None:
        raise SettingsError(f"the policies have several engines: add --model, one of {', '.join(engines)}")
    raise SettingsError(f"--model {model} is no model with an engine{nearest(model, engines)}")


def _of_this_machine(policies: Policies, name: str) -> Policies:
    """Its engine alone, without what tells gateways where it is: they may have the same policies."""
    entry = policies.models[name]
    if entry.engine is None:
        raise ValueError(f"the model {name!r} has no engine")
    engine = msgspec.structs.replace(entry.engine, addresses=[])
    return msgspec.structs.replace(policies, models={name: msgspec.structs.replace(entry, engine=engine)})


def listen_address(text: str) -> Address:
    """Where to listen; port 0 is any free one. Raises SettingsError."""
    try:
        address = parse_address(text)
    except ValueError as error:
        raise SettingsError(f"--listen {error}") from None
    fault = Address(address.scheme, address.host, address.port or 1).fault
    if fault:
        raise SettingsError(f"--listen {text} {fault}")
    return address


def _become(command: Command) -> NoReturn:
    """Replace this process: its id stays, for signals and for what watches it."""
    with tempfile.TemporaryFile() as stdin:
        stdin.write(command.stdin())
        stdin.seek(0)
        os.dup2(stdin.fileno(), 0)
    for fd in command.pass_fds:
        os.set_inheritable(fd, True)
    sys.stderr.flush()
    arguments = [sys.executable, "-P", "-m", command.module, *command.arguments]
    os.execve(sys.executable, arguments, dict(command.environment))
