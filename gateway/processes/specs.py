"""How each process is started: its module, configuration and environment. Only workers get secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from backend.config import EngineConfig, ParallelConfig, QuantizeConfig, RestoredAdapter, SpeculativeConfig
from backend.cpu_quota import cpu_quota
from backend.encoder.checkpoint import resolve
from backend.server.encoder_messages import EncoderConfig
from backend.server.engine_messages import Adapters
from gateway.checkpoints import adapter_folder, checkpoint_folder, drafter_folders, expected_digests
from gateway.processes.card_shares import Seat, seat
from gateway.processes.managed_process import Command
from gateway.processes.messages import Version
from gateway.settings import Settings, subprocess_environment
from policies.document import EncoderModel, EngineModel, Policies
from policies.names import split_replica
from policies.upstream import UpstreamModel


class RestartableConfig:
    """The configuration that an engine or encoder process reads from stdin whenever it starts."""

    def __init__(self, config: EngineConfig | EncoderConfig) -> None:
        self.config = config

    def line(self) -> bytes:
        """The configuration as a line of JSON."""
        return msgspec.json.encode(self.config) + b"\n"

    def follow(self, first: RestartableConfig) -> None:
        """Take over what the first replica of an engine has come to, but its card."""
        own, config = self.config, first.config
        assert isinstance(own, EngineConfig) and isinstance(config, EngineConfig)
        self.config = msgspec.structs.replace(config, card=own.card, gpu_memory=own.gpu_memory)

    def keep_adapters(self, known: Adapters) -> None:
        """Record an engine's adapters as `restored_adapters`: it starts without those that are lost."""
        assert isinstance(self.config, EngineConfig)
        before = self.config.restored_adapters
        restored = {name: before[name] for name in known.lost if name in before}
        restored |= {info.name: RestoredAdapter(info.path, info.digest) for info in known.adapters}
        self.config = msgspec.structs.replace(self.config, adapters={}, restored_adapters=restored)


def backend_config(name: str, policies: Policies, settings: Settings) -> RestartableConfig:
    """The configuration of a model's process or one of its replicas, which have all the same but their cards.

    Raises CheckpointError when the checkpoint does not exist, or no card has room.
    """
    process, (name, _) = name, split_replica(name)
    section = policies.models[name].section
    if isinstance(section, UpstreamModel):
        raise ValueError(f"the model {name!r} is an upstream: it has no process here")
    if isinstance(section, EncoderModel):
        return RestartableConfig(_encoder_config(name, section))
    return RestartableConfig(_engine_config(name, section, settings, seat(process, section, policies)))


def backend_command(
    name: str,
    config: RestartableConfig,
    policies: Policies,
    listen_fd: int,
    log_format: str = "text",
    *,
    is_supervised: bool = True,
) -> Command:
    """The command of the engine or encoder process `name`, which listens on the socket `listen_fd`.

    `is_supervised`: it ends with this process.
    """
    watched = ["--parent-pid", str(os.getpid())] if is_supervised else []
    kind = "engine" if isinstance(config.config, EngineConfig) else "encoder"
    return Command(
        f"{kind} {name!r}",
        f"backend.server.{kind}_process",
        ["--listen-fd", str(listen_fd), *watched, "--log-format", log_format],
        _named(_compute_environment(policies), name),
        config.line,
        (listen_fd,),
    )


def worker_command(
    number: int, fds: Sequence[int], version: Callable[[], Version], statuses: Callable[[], bytes]
) -> Command:
    """The command of a gateway worker. Its configuration, which has secrets, goes through a pipe only.

    It inherits `fds`, of which the first is the socket it listens on; each start serves what `version` gives.
    """

    def stdin() -> bytes:
        config = {"version": version(), "listen_fd": fds[0], "number": number}
        return msgspec.json.encode(config) + b"\n" + statuses()

    environment = subprocess_environment(version().policies)
    return Command(f"gateway worker {number}", "gateway.wiring.worker", [], environment, stdin, tuple(fds))


def _compute_environment(policies: Policies) -> dict[str, str]:
    """The environment of a process that computes: its threads soon sleep while they wait for each other."""
    environment = subprocess_environment(policies)
    # By default libgomp's threads spin for milliseconds at both ends of every parallel region. While other
    # processes hold the cores, a thread spins away the time that the one it waits for needs: steps took 5 to
    # 20 times as long. Why about 10 µs, and not 0 (PASSIVE alone): on idle cores a step of 0.45 B parameters
    # is 1.1 times as fast, beside two busy processes as fast; beside six small steps are slower. Longer spins
    # stall there. With more threads than cores they do not spin. libgomp reads this when torch (or Numba,
    # with a libgomp of its own) is loaded.
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & environment.keys():
        environment |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
    if "CUDA_VISIBLE_DEVICES" not in environment:
        environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # cards have the numbers of nvidia-smi
    if (cores := cpu_quota()) is not None:
        environment.setdefault("OMP_NUM_THREADS", str(cores))
    return environment


def _named(environment: dict[str, str], name: str) -> dict[str, str]:
    """The same, with what tells replicas apart in traces, where the user names no instance."""
    attributes = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if "service.instance.id=" in attributes:
        return environment
    found = [*filter(None, [attributes]), f"service.instance.id={quote(name, safe='')}"]
    return environment | {"OTEL_RESOURCE_ATTRIBUTES": ",".join(found)}


def _engine_config(name: str, engine: EngineModel, settings: Settings, place: Seat) -> EngineConfig:
    values = msgspec.structs.asdict(engine)
    values["gpu_memory"] = place.share
    values["card"] = place.card.uuid
    values["checkpoint"] = str(checkpoint_folder(engine.checkpoint))
    values["sha256"] = expected_digests(engine)
    for field in (
        "reasoning",
        "tool_parser",
        "adapter_loading",
        "unknown_fields",
        "replicas",
        "drain_handover_s",
        "addresses",
        "dns",
        "connection",
    ):  # the gateway's own
        del values[field]
    values["parallel"] = ParallelConfig(**msgspec.structs.asdict(engine.parallel))
    values["quantize"] = _quantize_config(engine, settings)
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
    return EngineConfig(
        model=name,
        otlp_endpoint=telemetry.otlp_endpoint,
        otlp_protocol=telemetry.otlp_protocol,
        otlp_headers=telemetry.otlp_headers,
        **values,
    )


def _quantize_config(engine: EngineModel, settings: Settings) -> QuantizeConfig | None:
    if engine.quantize is None:
        return None
    calibration = engine.quantize.calibration
    return QuantizeConfig(
        scheme=engine.quantize.scheme,
        calibration=str(Path(calibration).expanduser().resolve()) if calibration else "",
        folder=str(Path(settings.data_dir, "quantized").resolve()) if settings.data_dir else "",
    )


def _encoder_config(name: str, encoder: EncoderModel) -> EncoderConfig:
    values = msgspec.structs.asdict(encoder)
    for field in ("unknown_fields", "languages"):  # the gateway's own
        del values[field]
    folder = resolve(encoder.checkpoint)
    values["sha256"] = {str(folder / file): digest for file, digest in encoder.sha256.items()}
    return EncoderConfig(model=name, **values)
