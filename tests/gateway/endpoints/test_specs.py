"""The records agree with the table of names, and every path of one is served."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.endpoints.specs import SPECS, spec_of
from gateway.exchange.endpoint import Endpoint
from gateway.telemetry import instruments, spans
from policies.endpoints import ENDPOINTS
from tests.gateway.conftest import MakeApp, http_client

BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    "completions": {"prompt": "hi"},
    "embeddings": {"input": "hi"},
    "rerank": {"query": "hi", "documents": ["a", "b"]},
}


def test_names_and_order_are_those_of_the_policies() -> None:
    assert [spec.name for spec in SPECS] == list(ENDPOINTS)
    assert set(ENDPOINTS) <= set(instruments.MODEL_ENDPOINTS) & set(spans.OPERATIONS)


def test_a_record_is_an_endpoint_of_the_pipeline() -> None:
    assert all(isinstance(spec, Endpoint) for spec in SPECS)


def test_text_has_a_shape_and_vectors_an_encoding() -> None:
    for spec in SPECS:
        assert (spec.shape or spec.encode or spec.translation) is not None


@pytest.mark.parametrize(("name", "path"), [(spec.name, path) for spec in SPECS for path in spec.paths])
async def test_every_path_answers_and_counts_as_its_endpoint(make_app: MakeApp, name: str, path: str) -> None:
    async with http_client(make_app()) as http:
        answer = await http.post(path, json={"model": "ours", **BODIES[name]})
        assert answer.status_code == 200 or answer.json()["error"]["code"] == "model_not_supported"
        page = (await http.get("/metrics")).text
    labels = f'endpoint="{name}",model="ours",status="{answer.status_code // 100}xx"'
    assert f"penstock_requests_total{{{labels}}} 1.0" in page


@pytest.mark.parametrize("path", [spec.counts.path for spec in SPECS if spec.counts is not None])
async def test_a_count_goes_to_a_tokenizer(http: httpx.AsyncClient, path: str) -> None:
    name = "messages" if "messages" in path else "responses"
    body = {field: value for field, value in BODIES[name].items() if field != "max_tokens"}
    answer = await http.post(path, json={"model": "ours", **body})
    assert answer.status_code == 404 and "tokenizer" in answer.text


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"messages": []}, "chat"),
        ({"prompt": "x"}, "completions"),
        ({"input": "x"}, "embeddings"),
        ({"query": "x", "documents": []}, "rerank"),
        ({}, "chat"),
        ({"messages": [], "prompt": "x"}, "completions"),
    ],
)
def test_a_body_alone_shows_its_endpoint(body: dict[str, object], name: str) -> None:
    assert spec_of(body).name == name
