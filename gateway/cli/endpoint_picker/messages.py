"""The messages of Envoy's external processing and of gRPC's health checks, as far as the picker needs them.

Field numbers are those of envoy/service/ext_proc/v3 and grpc/health/v1. Reading skips a field that is not
here, as Protocol Buffers want it. Enumerations are numbers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH = "grpc.health.v1.Health"


class BodyMode(IntEnum):
    """How a proxy sends a body."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


class Serving(IntEnum):
    """What a health check answers."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


OVERWRITE = 2
"""`append_action` of a header that replaces a client's."""

_STRUCT = "google.protobuf.Struct"
_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "ProcessingRequest": {
        "request_headers": (2, "HttpHeaders"),
        "response_headers": (3, "HttpHeaders"),
        "request_body": (4, "HttpBody"),
        "response_body": (5, "HttpBody"),
        "request_trailers": (6, "Empty"),
        "response_trailers": (7, "Empty"),
        "metadata_context": (8, "Metadata"),
        "protocol_config": (11, "ProtocolConfiguration"),
    },
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, "bool")},
    "HeaderMap": {"headers": (1, "repeated HeaderValue")},
    "HeaderValue": {"key": (1, "string"), "value": (2, "string"), "raw_value": (3, "bytes")},
    "HttpBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "Empty": {},
    "Metadata": {"filter_metadata": (1, "repeated MetadataEntry")},
    "MetadataEntry": {"key": (1, "string"), "value": (2, _STRUCT)},
    "ProtocolConfiguration": {"request_body_mode": (1, "int32"), "response_body_mode": (2, "int32")},
    "ProcessingResponse": {
        "request_headers": (1, "Handled"),
        "response_headers": (2, "Handled"),
        "request_body": (3, "Handled"),
        "response_body": (4, "Handled"),
        "request_trailers": (5, "Empty"),
        "response_trailers": (6, "Empty"),
        "immediate_response": (7, "ImmediateResponse"),
        "dynamic_metadata": (8, _STRUCT),
    },
    "Handled": {"response": (1, "CommonResponse")},  # HeadersResponse and BodyResponse, which are alike
    "CommonResponse": {
        "header_mutation": (2, "HeaderMutation"),
        "body_mutation": (3, "BodyMutation"),
        "clear_route_cache": (5, "bool"),
    },
    "HeaderMutation": {"set_headers": (1, "repeated HeaderValueOption")},
    "HeaderValueOption": {"header": (1, "HeaderValue"), "append_action": (3, "int32")},
    "BodyMutation": {"streamed_response": (3, "HttpBody")},
    "ImmediateResponse": {
        "status": (1, "HttpStatus"),
        "headers": (2, "HeaderMutation"),
        "body": (3, "bytes"),
    },
    "HttpStatus": {"code": (1, "int32")},
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}
Message = Any
"""A message of any type: their classes are made when this module is imported."""
_PACKAGE = "penstock.endpoint_picker"
_Field = descriptor_pb2.FieldDescriptorProto


def _declared() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="endpoint_picker.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[struct_pb2.DESCRIPTOR.name],
    )
    for message, fields in _FIELDS.items():
        declared = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            kind, is_repeated = kind.removeprefix("repeated "), kind.startswith("repeated ")
            label = _Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL
            field = declared.field.add(name=name, number=number, label=label)
            if kind[0].islower() and "." not in kind:
                field.type = getattr(_Field, f"TYPE_{kind.upper()}")
            else:
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{kind}" if "." in kind else f".{_PACKAGE}.{kind}"
    return file


def _types() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(_declared())
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"{_PACKAGE}.{name}")) for name in _FIELDS}


_TYPES = _types()
ProcessingRequest: Message = _TYPES["ProcessingRequest"]
ProcessingResponse: Message = _TYPES["ProcessingResponse"]
HealthCheckRequest: Message = _TYPES["HealthCheckRequest"]
HealthCheckResponse: Message = _TYPES["HealthCheckResponse"]
