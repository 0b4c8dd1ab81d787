"""A Ray Serve application that runs the engines of one model; gateways reach them at the policies' addresses.

Ray places engines and replaces those that die. Tokens never pass through it: a call of a Ray handle costs
milliseconds, and its stream ends with the replica, while a gateway goes on elsewhere.

`serve run deploy.ray.engines:build policies=DIR model=NAME --route-prefix none`; see deploy/README.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import ray
from msgspec import Meta
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from backend.parent_death_signal import die_with
from backend.server.endpoints import RemoteEndpoint
from backend.server.engine_client import EngineClient
from backend.server.quote import wait_s
from gateway.providers.engine.remote import Door
from gateway.settings import Settings
from policies.document import EngineModel
from policies.engine_addresses import Address, parse_address
from policies.load import load_folder

QUEUE_SECONDS = "queue_seconds"
START_LIMIT_S = 1800.0
DRAIN_LIMIT_S = 300.0
POLL_S = 0.1
SPARE_SHARE = 0.25
"""Below this share of the bound on its queue, an engine is one too many."""


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What `serve run` or the `args` of a Serve configuration say."""

    policies: str  # the folder, at the same place on every node
    model: str
    min_replicas: Annotated[int, Meta(ge=1)] = 1
    max_replicas: Annotated[int, Meta(ge=1)] | None = None  # None: one for each address of the model
    num_cpus: Annotated[float, Meta(ge=0)] = 1.0  # of each engine
    num_gpus: Annotated[float, Meta(ge=0)] = 0.0
    max_queue_seconds: Annotated[float, Meta(gt=0)] = 1.0  # predicted; another engine starts above
    # What `penstock engine` is to be told for tls:// addresses: paths and a variable's name, on every node.
    certificate: str = ""
    key: str = ""
    ca: str = ""
    token_env: str = ""

    def flags(self) -> list[str]:
        """These as flags of `penstock engine`."""
        found = {"certificate": self.certificate, "key": self.key, "ca": self.ca, "token-env": self.token_env}
        return [part for name, value in found.items() if value for part in (f"--{name}", value)]


class EngineReplica:
    """An engine process at one of the model's addresses on this node, and how it fares."""

    async def __init__(self, policies: str, model: str, flags: Sequence[str] = ()) -> None:
        """Start the engine and wait until it serves. Raises RuntimeError."""
        section = _engine(policies, model)
        self.address, self._claim = claim(section.addresses, node_hosts())
        self._client = EngineClient(endpoint(model, section, self.address))
        await self._client.start()
        self._arguments = ["--policies", policies, "--model", model, "--listen", self.address, *flags]
        self._fault = ""
        await self._start()
        self._keeping = asyncio.create_task(self._keep_running())

    async def _start(self) -> None:
        """Start the process, and return when it serves. Raises RuntimeError."""
        self._is_starting = True
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "engine", *self._arguments],
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with(os.getpid()),
        )
        async with asyncio.timeout(START_LIMIT_S):
            while not self._client.ready:
                if (code := self._process.poll()) is not None:
                    raise RuntimeError(f"the engine at {self.address} ended with exit code {code} at start")
                await asyncio.sleep(POLL_S)
        self._is_starting = False

    async def _keep_running(self) -> None:
        """Start the engine again when it ends, sooner than Ray can; one that cannot start is left to Ray."""
        while not self._fault:
            await asyncio.to_thread(self._process.wait)
            try:
                await self._start()
            except (RuntimeError, TimeoutError) as error:
                self._fault = str(error) or f"the engine at {self.address} does not become ready"

    async def check_health(self) -> None:
        """Raise RuntimeError where Ray should replace this: the engine cannot start, or its loop hangs."""
        if self._fault:
            raise RuntimeError(self._fault)
        if not self._is_starting and not self._client.ready:
            raise RuntimeError(f"the engine at {self.address} sends no heartbeats {self._client.fault}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The predicted seconds that a new request waits."""
        return {QUEUE_SECONDS: wait_s(self._client.stats)}

    async def engine(self) -> tuple[str, int]:
        """Its address and the process's id."""
        return self.address, self._process.pid

    async def __del__(self) -> None:
        """Let the engine finish what runs. Ray's limit is the longer of the two."""
        self._keeping.cancel()
        await self._client.close()
        self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, DRAIN_LIMIT_S)
        self._claim.close()


def build(args: Mapping[str, Any]) -> serve.Application:
    """The application. Raises msgspec.ValidationError, PolicyError or ValueError."""
    options = msgspec.convert(dict(args), Options, strict=False)
    num_addresses = len(_engine(options.policies, options.model).addresses)
    scaling = AutoscalingConfig(
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas or num_addresses,
        policy=AutoscalingPolicy(policy_function=ByQueue, policy_kwargs={"max_s": options.max_queue_seconds}),
    )
    deployment = serve.deployment(
        name=f"engine-{options.model}",
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        autoscaling_config=scaling,
        health_check_period_s=1.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_timeout_s=DRAIN_LIMIT_S + 10.0,
    )(EngineReplica)
    return deployment.bind(str(Path(options.policies).resolve()), options.model, options.flags())


class ByQueue:
    """One engine more where the mean predicted wait exceeds `max_s`, one fewer where it is far below."""

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The wanted number of replicas. Ray applies its delays and its bounds."""
        waits_s = list(((context.aggregated_metrics or {}).get(QUEUE_SECONDS) or {}).values())
        wanted = context.target_num_replicas
        if waits_s:
            mean_s = sum(waits_s) / len(waits_s)
            wanted += (mean_s > self._max_s) - (mean_s < SPARE_SHARE * self._max_s)
        return wanted, {}


def endpoint(model: str, engine: EngineModel, address: str) -> RemoteEndpoint:
    """How this node reaches an engine of the model, as its gateways do. Raises SettingsError."""
    variable = engine.connection.token_env if engine.connection is not None else None
    tokens = {model: os.environ.get(variable, "").strip()} if variable else {}
    return Door(model, engine, Settings(upstream_api_keys=tokens)).endpoint(parse_address(address))


def claim(addresses: Sequence[str], hosts: set[str]) -> tuple[str, socket.socket]:
    """The first of these addresses on these hosts that no other replica of the node has.

    It stays claimed until the socket is closed. Raises RuntimeError where none is left.
    """
    for text in addresses:
        address: Address = parse_address(text)
        if address.host not in hosts:
            continue
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0penstock-engine-{address.port}")
        except OSError:
            lock.close()
            continue
        return text, lock
    raise RuntimeError(f"none of the addresses {', '.join(addresses)} is free on this node: list more")


def node_hosts() -> set[str]:
    """The names by which addresses may call this node."""
    return {"127.0.0.1", "::1", "localhost", socket.gethostname(), str(ray.util.get_node_ip_address())}


def _engine(policies: str, model: str) -> EngineModel:
    entry = load_folder(Path(policies)).policies.models.get(model)
    if entry is None or entry.engine is None or not entry.engine.addresses:
        raise ValueError(f"{policies} has no model {model!r} whose engine has addresses: add them")
    return entry.engine
