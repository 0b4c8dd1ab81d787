"""How each of our processes is started: module, configuration, secrets (none for engines)."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from backend.config import EngineConfig, RestoredAdapter, SpeculativeConfig
from backend.server.engine_messages import Adapters
from gateway.checkpoints import adapter_folder, checkpoint_folder, drafter_folders
from gateway.processes.managed_process import Command
from gateway.settings import Settings, child_environment
from policies.document import EncoderModel, EngineModel, Policies

logger = logging.getLogger(__name__)


def backend(name: str, policies: Policies, settings: Settings, folder: Path) -> Command:
    """Return the command of an engine or encoder process; its configuration is written into `folder`.

    Raises CheckpointError when the checkpoint is not there.
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
    return Command(f"{kind} {name!r}", module, arguments, child_environment(policies))


class AdapterMemory:
    """Lets an engine that starts again serve the adapters that it served before."""

    def __init__(self, folder: Path, socket_path: str) -> None:
        self._path = _config_path(folder, Path(socket_path))

    def remember(self, known: Adapters) -> None:
        """Write them into the engine's configuration, where none can keep it from starting."""
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
        except OSError as error:  # a full disk: what is served goes on
            logger.error("the adapters of %s will not outlive it: %s", self._path.stem, error)


def _config_path(folder: Path, socket_path: Path) -> Path:
    return folder / f"{socket_path.stem}.json"


def _engine_config(name: str, engine: EngineModel, settings: Settings) -> bytes:
    values = msgspec.structs.asdict(engine)
    values["checkpoint"] = str(checkpoint_folder(engine.checkpoint))
    for name_of_text in ("reasoning", "tool_parser", "adapter_loading"):  # the gateway's own
        del values[name_of_text]
    values["adapters"] = {each: str(adapter_folder(entry.path)) for each, entry in engine.adapters.items()}
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
    return msgspec.json.encode({"model": name, **msgspec.structs.asdict(encoder)})


def worker(number: int, policies: Policies, settings: Settings, listen_fd: int) -> Command:
    """Return the command of a gateway worker. Its orders, which hold secrets, go through a pipe only."""
    orders = msgspec.json.encode({"settings": settings, "policies": policies, "listen_fd": listen_fd})
    return Command(
        f"gateway worker {number}",
        "gateway.worker",
        [],
        child_environment(policies),
        stdin=orders + b"\n",
        pass_fds=[listen_fd],
    )
