"""The picker as a process: connections to the engines of the policies, and a gRPC server."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec

from gateway.auth import key_ring
from gateway.cli.endpoint_picker.messages import (
    HEALTH,
    PROCESSOR,
    HealthCheckRequest,
    HealthCheckResponse,
    Message,
    ProcessingRequest,
    Serving,
)
from gateway.cli.endpoint_picker.picker import EndpointPicker
from gateway.cli.endpoint_picker.processing import Processing
from gateway.exchange.model_table import ModelTable
from gateway.log import configure_logging, hide
from gateway.settings import Settings, SettingsError, read_settings, with_policies
from gateway.wiring.model_builder import ModelBuilder
from gateway.wiring.worker_parts import build_parts
from policies.cache import CacheSection
from policies.document import Policies
from policies.guardrails import GuardrailsSection
from policies.load import load_folder
from policies.tenants import ReplicasSection

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""How often a watched health is asked again."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the picker listens."""

    address: str  # HOST:PORT
    certificate: Path | None = None
    key: Path | None = None


def run_picker(folder: Path, endpoint_port: int, listening: Listening) -> int:
    """Serve until SIGTERM or SIGINT. Raises SettingsError, PolicyError, CheckpointError or KeysFileError."""
    settings = read_settings({"data_dir": ""})
    configure_logging(settings.log_format)
    policies = remote_engines(load_folder(folder).policies)
    settings = with_policies(settings, policies)
    hide(settings.secrets)
    asyncio.run(_serve(settings, policies, endpoint_port, listening))
    return 0


def remote_engines(policies: Policies) -> Policies:
    """The models whose engines run elsewhere, alone: nothing else of the policies decides here."""
    engines = {
        name: entry for name, entry in policies.models.items() if entry.engine and entry.engine.is_remote
    }
    if not engines:
        raise SettingsError(
            "the policies have no engine with `addresses` or `dns`, as an endpoint picker needs"
        )
    return msgspec.structs.replace(
        policies,
        models=engines,
        routes={},
        replicas=ReplicasSection(),
        cache=CacheSection(),
        guardrails=GuardrailsSection(),
    )


async def _serve(settings: Settings, policies: Policies, endpoint_port: int, listening: Listening) -> None:
    async with AsyncExitStack() as stack:
        parts = build_parts(settings, [])
        stack.push_async_callback(parts.close)
        builder = ModelBuilder(settings, policies, {}, parts)
        models = ModelTable([builder.build(name) for name in policies.models], {})
        for resource in builder.resources:
            await resource.start()
            stack.push_async_callback(resource.close)
        live = None if parts.keys is None else parts.keys.live
        picker = EndpointPicker(models, key_ring(settings, live), endpoint_port)
        server = new_server(picker, settings.max_body_bytes)
        port = bind(server, listening)
        await server.start()
        logger.info("the endpoint picker listens on %s, port %d", listening.address, port)
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await ended.wait()
        await server.stop(settings.drain_timeout_s)


def bind(server: grpc.aio.Server, listening: Listening) -> int:
    """The port. Raises SettingsError."""
    try:
        if listening.certificate is None or listening.key is None:
            return int(server.add_insecure_port(listening.address))
        pair = listening.key.read_bytes(), listening.certificate.read_bytes()
        return int(server.add_secure_port(listening.address, grpc.ssl_server_credentials([pair])))
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"--listen {listening.address} cannot be used: {error}") from None


def new_server(picker: EndpointPicker, max_body_bytes: int) -> grpc.aio.Server:
    """The gRPC server with the picker's services; not started."""

    async def process(messages: AsyncIterator[Message], _: object) -> AsyncIterator[Message]:
        async for response in Processing(picker.pick, max_body_bytes).answers(messages):
            yield response

    async def check(request: Message, context: grpc.aio.ServicerContext) -> Message:
        status = _health(picker, request.service)
        if status is Serving.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this service is not known")
        return HealthCheckResponse(status=status)

    async def watch(request: Message, _: object) -> AsyncIterator[Message]:
        last: Serving | None = None
        while True:
            if (status := _health(picker, request.service)) is not last:
                yield HealthCheckResponse(status=status)
                last = status
            await asyncio.sleep(POLL_S)

    processor = grpc.stream_stream_rpc_method_handler(process, ProcessingRequest.FromString, _serialized)
    checks = {
        "Check": grpc.unary_unary_rpc_method_handler(check, HealthCheckRequest.FromString, _serialized),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, HealthCheckRequest.FromString, _serialized),
    }
    # A proxy may send a body in one message.
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", max_body_bytes + (1 << 16))])
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(PROCESSOR, {"Process": processor}),
            grpc.method_handlers_generic_handler(HEALTH, checks),
        )
    )
    return server


def _health(picker: EndpointPicker, service: str) -> Serving:
    if service == "liveness":
        return Serving.SERVING
    if service in ("", "readiness", PROCESSOR):
        return Serving.SERVING if picker.is_ready else Serving.NOT_SERVING
    return Serving.SERVICE_UNKNOWN


def _serialized(message: Message) -> bytes:
    found: bytes = message.SerializeToString()
    return found
