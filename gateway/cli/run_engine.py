"""`penstock engine`: reads the policies and becomes the engine process of one model."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import msgspec

from backend.errors import ConfigError
from backend.server.door import Door, DoorConfig
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


MIN_TOKEN_CHARS = 16


@dataclass(frozen=True, slots=True)
class Shown:
    """The flags about what this engine and its gateways show each other."""

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    token_env: str | None = None


def run_engine(folder: Path, model: str | None, address: str, shown: Shown) -> NoReturn:
    """Serve the engine of `model` at `address`; its exit codes are those of backend/server/serve.py.

    Raises SettingsError, PolicyError or CheckpointError.
    """
    require("penstock engine", ["engine"])
    settings = read_settings({})
    configure_logging(settings.log_format)
    hide(settings.secrets)
    place = listen_address(address)
    door = door_config(place, shown)
    policies = load_folder(folder).policies
    name = engine_of(policies, model)
    policies = _of_this_machine(policies, name)
    check_checkpoints(policies, ())
    config = backend_config(name, policies, settings)
    listener = bind(place.host, place.port, "--listen")
    port = listener.getsockname()[1]
    logger.info("the engine of %r listens on %s", name, Address(place.scheme, place.host, port))
    command = backend_command(
        name, config, policies, listener.fileno(), settings.log_format, is_supervised=False
    )
    environment = {key: value for key, value in command.environment.items() if key != shown.token_env}
    arguments = [*command.arguments, "--door"]
    stdin = command.stdin() + msgspec.json.encode(door) + b"\n"
    _become(replace(command, arguments=arguments, environment=environment, stdin=lambda: stdin))


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
    engine = msgspec.structs.replace(entry.engine, addresses=[], dns=None, connection=None)
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


def door_config(address: Address, shown: Shown) -> DoorConfig:
    """What the engine process asks of its peers. Raises SettingsError."""
    is_tls = address.scheme == "tls"
    if is_tls != (shown.certificate is not None and shown.key is not None):
        remedy = "add --certificate FILE --key FILE" if is_tls else "write tls://, or leave both out"
        raise SettingsError(f"--listen {address} and --certificate with --key go together: {remedy}")
    if shown.ca is not None and not is_tls:
        raise SettingsError(f"--ca is for --listen tls://HOST:PORT, not for {address}")
    if is_tls and shown.ca is None and shown.token_env is None:
        raise SettingsError(
            f"--listen {address} would answer all who connect: add --ca FILE (the CAs of gateways' "
            "certificates) or --token-env NAME"
        )
    files = {"certificate": shown.certificate, "key": shown.key, "ca": shown.ca}
    paths = {name: str(path.expanduser().resolve()) for name, path in files.items() if path is not None}
    config = DoorConfig(**paths, token=_token(shown.token_env))
    try:
        Door(config)
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    return config


def _token(variable: str | None) -> str:
    if variable is None:
        return ""
    token = os.environ.get(variable, "").strip()
    if len(token) < MIN_TOKEN_CHARS:
        raise SettingsError(
            f"--token-env {variable} holds {len(token)} characters; export a token of {MIN_TOKEN_CHARS} or "
            "more, such as `openssl rand -hex 32` prints"
        )
    return token


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
