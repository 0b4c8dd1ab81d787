"""The picker's gRPC server, asked over connections by another implementation of Envoy's messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme

from gateway.cli.endpoint_picker.messages import HEALTH, PROCESSOR, Message
from gateway.cli.endpoint_picker.picker import Asked, Refusal
from gateway.cli.endpoint_picker.server import Listening, bind, new_server, remote_engines
from gateway.settings import SettingsError
from policies.load import load_folder
from tests.gateway.cli.endpoint_picker.test_processing import DESTINATION

WHY = "envoy-data-plane is not installed: pip install 'penstock[test]'"
envoy = pytest.importorskip("envoy_data_plane.envoy.service.ext_proc.v3", reason=WHY)
core = pytest.importorskip("envoy_data_plane.envoy.config.core.v3", reason=WHY)

LIMIT_S = 30.0
LOCAL = Listening("127.0.0.1:0")


class Picker:
    """One endpoint; none for a path with `none` in it."""

    is_ready = True

    async def pick(self, asked: Asked) -> str:
        if "none" in asked.path:
            raise Refusal(503, "None is ready.")
        return f"10.0.0.1:{len(asked.body)}"


@asynccontextmanager
async def serving(picker: Picker, listening: Listening = LOCAL) -> AsyncIterator[int]:
    server = new_server(picker, 1_000_000)  # type: ignore[arg-type]
    port = bind(server, listening)
    await server.start()
    yield port
    await server.stop(None)


async def ask(channel: grpc.aio.Channel, path: str, body: bytes = b"") -> list[Message]:
    """What a proxy asks of one request with a streamed body, and the answers."""
    headers = core.HeaderMap(headers=[core.HeaderValue(key=":path", raw_value=path.encode())])
    process = channel.stream_stream(f"/{PROCESSOR}/Process", bytes, envoy.ProcessingResponse.parse)
    messages = [
        envoy.ProcessingRequest(request_headers=envoy.HttpHeaders(headers=headers)),
        envoy.ProcessingRequest(request_body=envoy.HttpBody(body=body, end_of_stream=True)),
    ]
    async with asyncio.timeout(LIMIT_S):
        return [each async for each in process(iter(messages))]


async def check(channel: grpc.aio.Channel, service: str) -> bytes:
    asked = b"\x0a" + bytes([len(service)]) + service.encode()
    found: bytes = await channel.unary_unary(f"/{HEALTH}/Check")(asked, timeout=LIMIT_S)
    return found


async def test_a_destination_and_a_refusal() -> None:
    async with serving(Picker()) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        headers, body = await ask(channel, "/v1/chat/completions", b"{}")
        (option,) = headers.request_headers.response.header_mutation.set_headers
        assert (option.header.key, option.header.raw_value) == (DESTINATION, b"10.0.0.1:2")
        found = headers.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION]
        assert found.string_value == "10.0.0.1:2"
        assert body.request_body.response.body_mutation.streamed_response.body == b"{}"
        (refused,) = await ask(channel, "/none")
        assert refused.immediate_response.status.code == 503


async def test_health_of_each_service() -> None:
    serving_, not_serving = b"\x08\x01", b"\x08\x02"
    picker = Picker()
    async with serving(picker) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert [await check(channel, name) for name in ("", "readiness", PROCESSOR)] == [serving_] * 3
        picker.is_ready = False
        assert [await check(channel, name) for name in ("", "readiness", PROCESSOR)] == [not_serving] * 3
        assert await check(channel, "liveness") == serving_
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(channel, "other")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watched = channel.unary_stream(f"/{HEALTH}/Watch")(b"", timeout=LIMIT_S)
        assert await watched.read() == not_serving
        picker.is_ready = True
        assert await watched.read() == serving_
        watched.cancel()


async def test_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    trust = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    async with serving(Picker(), Listening("127.0.0.1:0", certificate, key)) as port:
        options = [("grpc.ssl_target_name_override", "localhost")]
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trust, options=options) as channel:
            assert await check(channel, "liveness") == b"\x08\x01"


async def test_an_address_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    server = new_server(Picker(), 1_000)  # type: ignore[arg-type]
    missing = tmp_path / "missing.pem"
    with pytest.raises(SettingsError, match=r"--listen 127.0.0.1:0 cannot be used.+missing"):
        bind(server, Listening("127.0.0.1:0", missing, missing))
    await server.stop(None)


def test_only_engines_elsewhere_are_asked(tmp_path: Path) -> None:
    local = '  a: {engine: {checkpoint: "builtin:pico-small"}}\n'
    elsewhere = '  b: {engine: {checkpoint: "builtin:pico-small", addresses: ["tcp://127.0.0.1:7600"]}}\n'
    upstream = "  c: {upstream: {base_url: https://example.com/v1, api_key_env: NOT_SET}}\n"
    file = tmp_path / "policies.yaml"
    file.write_text("models:\n" + local + elsewhere + upstream)
    assert list(remote_engines(load_folder(tmp_path).policies).models) == ["b"]
    file.write_text("models:\n" + local)
    with pytest.raises(SettingsError, match="no engine with `addresses` or `dns`"):
        remote_engines(load_folder(tmp_path).policies)
