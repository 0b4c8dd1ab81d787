"""Messages as another implementation of Envoy's protocol writes and reads them."""

from __future__ import annotations

import pytest

from gateway.cli.endpoint_picker.messages import BodyMode, ProcessingRequest, ProcessingResponse

WHY = "envoy-data-plane is not installed: pip install 'penstock[test]'"
envoy = pytest.importorskip("envoy_data_plane.envoy.service.ext_proc.v3", reason=WHY)
core = pytest.importorskip("envoy_data_plane.envoy.config.core.v3", reason=WHY)
processing = pytest.importorskip("envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3", reason=WHY)


def test_requests_are_read_as_envoy_means_them() -> None:
    headers = core.HeaderMap(headers=[core.HeaderValue(key=":path", raw_value=b"/v1")])
    config = envoy.ProtocolConfiguration(
        request_body_mode=processing.ProcessingModeBodySendMode.BUFFERED,
        response_body_mode=processing.ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED,
    )
    whole = envoy.ProcessingRequest(
        request_headers=envoy.HttpHeaders(headers=headers, end_of_stream=True),
        protocol_config=config,
        observability_mode=True,  # a field that is not declared here
    )
    found = ProcessingRequest.FromString(bytes(whole))
    assert found.HasField("request_headers") and not found.HasField("request_body")
    assert found.request_headers.end_of_stream
    assert found.request_headers.headers.headers[0].raw_value == b"/v1"
    assert found.protocol_config.request_body_mode == BodyMode.BUFFERED
    assert found.protocol_config.response_body_mode == BodyMode.FULL_DUPLEX_STREAMED
    for phase in ("request_body", "response_body"):
        body = envoy.ProcessingRequest(**{phase: envoy.HttpBody(body=b"x", end_of_stream=True)})
        found = ProcessingRequest.FromString(bytes(body))
        assert getattr(found, phase).body == b"x" and getattr(found, phase).end_of_stream
    for phase in ("request_trailers", "response_trailers"):
        trailers = envoy.ProcessingRequest(**{phase: envoy.HttpTrailers()})
        assert ProcessingRequest.FromString(bytes(trailers)).HasField(phase)


def test_the_other_phases_and_bodies_of_responses_are_envoys() -> None:
    piece = {"body_mutation": {"streamed_response": {"body": b"x", "end_of_stream": True}}}
    for phase in ("request_body", "response_body"):
        sent = ProcessingResponse(**{phase: {"response": piece}})
        found = getattr(envoy.ProcessingResponse.parse(sent.SerializeToString()), phase)
        streamed = found.response.body_mutation.streamed_response
        assert (streamed.body, streamed.end_of_stream) == (b"x", True)
    for phase in ("request_headers", "response_headers", "request_trailers", "response_trailers"):
        sent = ProcessingResponse(**{phase: {}})
        assert getattr(envoy.ProcessingResponse.parse(sent.SerializeToString()), phase) is not None
