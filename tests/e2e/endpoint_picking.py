"""Asks a running endpoint picker over gRPC, as a proxy does."""

from __future__ import annotations

import json
from collections.abc import Sequence

import grpc

from gateway.cli.endpoint_picker.messages import (
    HEALTH,
    PROCESSOR,
    HealthCheckRequest,
    HealthCheckResponse,
    Message,
    ProcessingRequest,
    ProcessingResponse,
    Serving,
)
from gateway.cli.endpoint_picker.processing import DESTINATION, METADATA_NAMESPACE, SUBSET, SUBSET_NAMESPACE

LIMIT_S = 60.0


def serialized(message: Message) -> bytes:
    found: bytes = message.SerializeToString()
    return found


def is_serving(channel: grpc.Channel) -> bool:
    """Whether any engine can get requests."""
    check = channel.unary_unary(f"/{HEALTH}/Check", serialized, HealthCheckResponse.FromString)
    try:
        found = check(HealthCheckRequest(service="readiness"), timeout=LIMIT_S)
    except grpc.RpcError:  # it does not listen yet
        return False
    return bool(found.status == Serving.SERVING)


def ask(channel: grpc.Channel, body: object, subset: Sequence[str] | None = None) -> str | int:
    """The endpoint for a chat, or the status of the refusal."""
    path = {"key": ":path", "raw_value": b"/v1/chat/completions"}
    headers = ProcessingRequest(request_headers={"headers": {"headers": [path]}})
    if subset is not None:
        hint = headers.metadata_context.filter_metadata.add(key=SUBSET_NAMESPACE)
        hint.value.update({SUBSET: list(subset)})
    sent = [
        headers,
        ProcessingRequest(request_body={"body": json.dumps(body).encode(), "end_of_stream": True}),
    ]
    process = channel.stream_stream(f"/{PROCESSOR}/Process", serialized, ProcessingResponse.FromString)
    first = next(iter(process(iter(sent), timeout=LIMIT_S)))
    if first.HasField("immediate_response"):
        return int(first.immediate_response.status.code)
    return str(first.dynamic_metadata[METADATA_NAMESPACE][DESTINATION])
