"""How each of our processes is started: module, configuration, secrets (none for engines)."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from backend.config import EngineConfig, SpeculativeConfig
from gateway.adapters import adapter_folder
from gateway.checkpoints import checkpoint_folder
from gateway.child import Command
from gateway.drafters import drafter_folders
from gateway.settings import Settings, child_environment
from policies.document import EncoderModel, EngineModel, Policies


def backend(name: str, policies: Policies, settings: Settings, folder: Path) -> Command:
    """Return the command of an engine or encoder process; its configuration is written into `folder`.

    Raises CheckpointError when the checkpoint is not there.
    """
    entry = policies.models[name]
    socket_path = Path(settings.socket_paths[name])
    if entry.engine is not None:
        kind, module, config = "engine", "backend.server.worker", _engine_config(name, entry.engine, settings)
    else:
        assert entry.encoder is not None
        kind, module, config = "encoder", "backend.server.encoder", _encoder_config(name, entry.encoder)
    path = folder / f"{socket_path.stem}.json"
    path.write_bytes(config)
    path.chmod(0o600)
    arguments = [str(path), "--socket", str(socket_path), "--parent-pid", str(os.getpid())]
    return Command(f"{kind} {name!r}", module, arguments, child_environment(policies))


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
