"""What `serve` and `batch` check and read before anything starts."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.errors import CheckpointError
from backend.server.engine_check import check_files, check_model
from gateway import settings
from gateway.checkpoints import checkpoint_folder
from gateway.cli.flag_models import with_flag_models
from gateway.cli.read_policies import PolicyReader
from gateway.extras import lack_of, require
from gateway.keys_file import read_keys
from gateway.log import configure_logging, hide
from gateway.processes.reload import Load
from gateway.providers.engine.remote import Door
from gateway.providers.upstream.tls import tls_context
from gateway.settings import Settings, SettingsError
from policies.document import Policies
from policies.urls import is_loopback

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """What to serve; `load` reads policies and settings again, `on_served` is told that they are served."""

    folder: Path
    settings: Settings
    policies: Policies
    load: Load
    on_served: Callable[[], None]


def prepare(options: argparse.Namespace, flags: dict[str, object]) -> Start:
    """Read the settings and the policies. Raises SettingsError, PolicyError or CheckpointError."""
    configure_logging(os.environ.get("PENSTOCK_LOG_FORMAT", "text"))  # for what is wrong with the settings
    folder = options.policies or settings.default_policies()
    chosen = settings.read_settings({**flags, "policy_folder": str(folder.absolute())})
    configure_logging(chosen.log_format)
    hide(chosen.secrets)
    check_settings(chosen)
    if options.only:
        _check_only(options, folder)
    only_flags = options.only or (folder == settings.DEFAULT_POLICIES and _leaves_out_embedded(options))

    def complete(policies: Policies) -> tuple[Policies, Settings]:
        if only_flags:
            policies = msgspec.structs.replace(policies, models={}, routes={})
        policies = with_flag_models(policies, options.model, options.upstream)
        _check_engine(options.model)
        check_checkpoints(policies, options.model)
        check_ca_bundles(policies)
        return policies, settings.with_policies(chosen, policies)

    reader = PolicyReader(folder, complete, checks_extras=not only_flags, keys_file=chosen.keys_file)
    policies, complete_settings = reader.first()
    return Start(folder, complete_settings, policies, reader.again, reader.on_served)


def _check_only(options: argparse.Namespace, folder: Path) -> None:
    if not (options.model or options.upstream):
        raise SettingsError("--only leaves no model: add --model NAME=FOLDER or --upstream NAME=BASE_URL")
    if folder != settings.DEFAULT_POLICIES:
        raise SettingsError(
            f"--only is for a start without policies, and {str(folder)!r} lists the models that it serves"
        )


def _leaves_out_embedded(options: argparse.Namespace) -> bool:
    """Whether the embedded models cannot run here, and an upstream is served without them.

    Raises SettingsError where nothing else would be served.
    """
    lack = lack_of("engine", "semantic")
    if not lack:
        return False
    _check_engine(options.model)
    if not options.upstream:
        raise SettingsError(
            f"serving the embedded models {lack}; or serve another API with --upstream NAME=BASE_URL, or "
            "policies of your own with --policies DIR"
        )
    with_flag_models(Policies(), options.model, options.upstream)  # a flag that is wrong comes first
    logger.warning("the embedded models are left out: serving them %s", lack)
    return True


def _check_engine(models: Sequence[str]) -> None:
    for text in models:
        require(f"--model {text.partition('=')[0]}", ["engine"])


def check_settings(chosen: Settings) -> None:
    """Raise SettingsError for values out of range, and for a public address without an API key."""
    if not 0 <= chosen.port <= 65535:
        raise SettingsError(f"--port {chosen.port} is not a port; use 0 to 65535")
    if chosen.workers < 1:
        raise SettingsError(f"--workers {chosen.workers} is too few; use 1 or more")
    if chosen.drain_timeout_s <= 0:
        raise SettingsError(f"--drain-timeout {chosen.drain_timeout_s:g} must be more than 0 seconds")
    if not all(key and key.isascii() and key.isprintable() for key in chosen.api_keys):
        raise SettingsError("an API key is empty or holds characters that an HTTP header cannot carry")
    if chosen.keys_file:
        read_keys(chosen.keys_file)
    elif not chosen.api_keys and not is_loopback(chosen.host):
        raise SettingsError(
            f"--host {chosen.host} can be reached from other machines, and no API key is configured: "
            "add --api-key KEY (or set PENSTOCK_API_KEYS or PENSTOCK_KEYS_FILE), or leave --host at 127.0.0.1"
        )


def check_checkpoints(policies: Policies, models: Sequence[str]) -> None:
    """Raise CheckpointError for a checkpoint that no engine can serve; `models` are `--model` flags."""
    flagged = {text.partition("=")[0] for text in models}
    for name, entry in policies.models.items():
        if entry.engine is None:
            continue
        try:
            folder = checkpoint_folder(entry.engine.checkpoint)
            check_model(folder)
            check_files(folder, is_served=not entry.engine.is_remote)
        except CheckpointError as error:
            where = f"--model {name}" if name in flagged else f"models.{name}.engine.checkpoint"
            raise CheckpointError(f"{where}: {error}") from None


def check_ca_bundles(policies: Policies) -> None:
    """Raise SettingsError for a CA bundle that cannot be read, before any worker starts."""
    for name, entry in policies.models.items():
        if entry.engine is not None and entry.engine.is_remote:
            Door(name, entry.engine, Settings())
        if entry.upstream is not None and entry.upstream.ca_bundle:
            try:
                tls_context(entry.upstream.ca_bundle)
            except SettingsError as error:
                raise SettingsError(f"models.{name}.upstream.ca_bundle: {error}") from None
