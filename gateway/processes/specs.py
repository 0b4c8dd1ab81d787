"""How each process is started: its module, configuration and environment. Only workers get secrets."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from backend.config import EngineConfig, RestoredAdapter, SpeculativeConfig
from backend.server.engine_messages import Adapters
from gateway.checkpoints import adapter_folder, checkpoint_folder, drafter_folders
from gateway.processes.managed_process import Command
from gateway.settings import Settings, subprocess_environment
from policies.document import EncoderModel, EngineModel, Policies

logger = logging.getLogger(__name__)


def backend_command(name: str, policies: Policies, settings: Settings, folder: Path) -> Command:
    """The command of an engine or encoder process. Writes its configuration into `folder`.

    Raises CheckpointError when the checkpoint does not exist.
    """
    entry = policies.models[name]
    socket_path = Path(settings.socket_paths[name])
    if entry.engine is not None:
        kind, module, config = (
            "engine",
            "backend.server.engine_process",
            _engine_config(name, entry.engine, settings),
        )
    else:
        assert entry.encoder is not None
        kind, module, config = (
            "encoder",
            "backend.server.encoder_process",
            _encoder_config(name, entry.encoder),
        )
    path = _config_path(folder, socket_path)
    path.write_bytes(config)
    path.chmod(0o600)
    arguments = [str(path), "--socket", str(socket_path), "--parent-pid", str(os.getpid())]
    return Command(f"{kind} {name!r}", module, arguments, subprocess_environment(policies))


class PersistedAdapters:
    """Writes an engine's adapters into its configuration, so that it loads them again after a restart."""

    def __init__(self, folder: Path, socket_path: str) -> None:
        self._path = _config_path(folder, Path(socket_path))

    def save(self, known: Adapters) -> None:
        """Record them as `restored_adapters`: if one is lost, the engine starts without it."""
        part = self._path.with_suffix(".part")
        try:
            config = msgspec.json.decode(self._path.read_bytes(), type=EngineConfig)
            before = config.restored_adapters
            restored = {name: before[name] for name in known.lost if name in before}
            restored |= {info.name: RestoredAdapter(info.path, info.digest) for info in known.adapters}
            config = msgspec.structs.replace(config, adapters={}, restored_adapters=restored)
            part.write_bytes(msgspec.json.encode(config))
            part.chmod(0o600)
            part.replace(self._path)
        except OSError as error:  # such as a full disk: the engine serves on
            logger.error(
                "the adapters of %s will not survive a restart of its engine: %s", self._path.stem, error
            )


def _config_path(folder: Path, socket_path: Path) -> Path:
    return folder / f"{socket_path.stem}.json"


def _engine_config(name: str, engine: EngineModel, settings: Settings) -> bytes:
    values = msgspec.structs.asdict(engine)
    values["checkpoint"] = str(checkpoint_folder(engine.checkpoint))
    for field in (
        "reasoning",
        "tool_parser",
        "adapter_loading",
        "unknown_fields",
    ):  # used by the gateway only
        del values[field]
    values["adapters"] = {each: str(adapter_folder(entry.path)) for each, entry in engine.adapters.items()}
    values["forced_adapters"] = [each for each, entry in engine.adapters.items() if entry.force]
    speculative = engine.speculative
    values["speculative"] = SpeculativeConfig(
        drafter=speculative.drafter,
        max_tokens=speculative.max_tokens,
        tree_nodes=speculative.tree_nodes,
        folders={drafter: str(path) for drafter, path in drafter_folders(engine).items()},
    )
    telemetry = settings.telemetry
    config = EngineConfig(
        model=name,
        otlp_endpoint=telemetry.otlp_endpoint,
        otlp_protocol=telemetry.otlp_protocol,
        otlp_headers=telemetry.otlp_headers,
        **values,
    )
    return msgspec.json.encode(config)


def _encoder_config(name: str, encoder: EncoderModel) -> bytes:
    values = msgspec.structs.asdict(encoder)
    del values["unknown_fields"]  # used by the gateway only
    return msgspec.json.encode({"model": name, **values})


def worker_command(number: int, policies: Policies, settings: Settings, listen_fd: int) -> Command:
    """The command of a gateway worker. Its configuration, which has secrets, goes through a pipe only."""
    config = msgspec.json.encode({"settings": settings, "policies": policies, "listen_fd": listen_fd})
    return Command(
        f"gateway worker {number}",
        "gateway.worker",
        [],
        subprocess_environment(policies),
        stdin=config + b"\n",
        pass_fds=[listen_fd],
    )
