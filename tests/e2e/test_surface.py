"""The rest of the HTTP API: health, metrics, tokenize, request ids, and clean errors."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import Server

CHAT = "/v1/chat/completions"


def check_error(response: httpx.Response, status: int, **expected: str | None) -> None:
    """Assert that the response is OpenAI's error body with these values."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert {name: error[name] for name in expected} == expected


def chat(**more: object) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2} | more


def test_health(http: httpx.Client) -> None:
    assert http.get("/health/live").status_code == 200
    ready = http.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json()["models"][MODEL]["ready"] is True


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/nothing", "/v1/chat", "/v1/audio", "/v1/nothing/x", "/nothing"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_other_paths_are_a_clean_404(http: httpx.Client, method: str, path: str) -> None:
    check_error(http.request(method, path), 404, type="invalid_request_error")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", CHAT), ("PUT", "/v1/embeddings"), ("DELETE", "/v1/models")]
)
def test_other_methods_are_a_405(http: httpx.Client, method: str, path: str) -> None:
    response = http.request(method, path)
    check_error(response, 405)
    assert response.headers["allow"]


def test_without_a_key_access_is_refused(server: Server) -> None:
    for path in (CHAT, "/v1/completions", "/v1/embeddings", "/tokenize"):
        check_error(httpx.post(server.root_url + path, json=chat()), 401, code="invalid_api_key")
    assert httpx.get(server.base_url + "/models").status_code == 401
    assert httpx.get(server.root_url + "/health/live").status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"prediction": {"type": "text", "content": "x"}}, "prediction"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_bad_fields_are_named(http: httpx.Client, change: dict[str, Any], param: str) -> None:
    response = http.post(CHAT, json=chat(**change))
    check_error(response, 400, type="invalid_request_error")
    assert response.json()["error"]["param"].split(".")[0].split("[")[0] == param


def test_image_parts_are_refused_by_name(http: httpx.Client) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    response = http.post(CHAT, json=chat(messages=[{"role": "user", "content": [part]}]))
    check_error(response, 400, type="invalid_request_error")
    assert "image" in response.json()["error"]["message"]


def test_a_prompt_that_is_too_long_is_a_clean_error(http: httpx.Client) -> None:
    response = http.post(CHAT, json=chat(messages=[{"role": "user", "content": "word " * 20_000}]))
    check_error(response, 400, code="context_length_exceeded")


def test_a_body_that_is_too_large_is_a_clean_error(http: httpx.Client) -> None:
    check_error(http.post(CHAT, content=b" " * (17 * 2**20)), 413)


def test_embedding_input_that_is_too_long_is_not_truncated(http: httpx.Client) -> None:
    response = http.post("/v1/embeddings", json={"model": "all-minilm-l6-v2", "input": "word " * 3000})
    check_error(response, 400, type="invalid_request_error", param="input")


def test_request_ids_are_returned(http: httpx.Client) -> None:
    assert (
        http.post(CHAT, json=chat(), headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    )
    made = {http.post(CHAT, json=chat()).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert http.get("/v1/nothing").headers["x-request-id"]


def test_tokenize_and_back(http: httpx.Client) -> None:
    tokens = http.post(
        "/tokenize", json={"model": MODEL, "prompt": "12 + 30 = 42, caf\u00e9 \U0001f600"}
    ).json()
    assert tokens["count"] == len(tokens["tokens"]) > 0
    back = http.post("/detokenize", json={"model": MODEL, "tokens": tokens["tokens"]}).json()
    assert back["prompt"] == "12 + 30 = 42, caf\u00e9 \U0001f600"


def test_metrics_count_requests_and_engine_work(http: httpx.Client, server: Server) -> None:
    labels = {"endpoint": "chat", "model": MODEL}
    server.settle()
    before = server.metric("penstock_requests_total", **labels, status="2xx")
    bad = server.metric("penstock_requests_total", endpoint="chat", status="4xx")
    assert http.post(CHAT, json=chat()).status_code == 200
    assert http.post(CHAT, json=chat(temperature=9)).status_code == 400
    server.settle()
    assert server.metric("penstock_requests_total", **labels, status="2xx") == before + 1
    assert server.metric("penstock_requests_total", endpoint="chat", status="4xx") == bad + 1
    assert server.metric("penstock_engine_up", model=MODEL) == 1
    for name in (
        "engine_steps_total",
        "engine_generated_tokens_total",
        "engine_time_to_first_token_seconds_count",
    ):
        server.wait_metric(f"penstock_{name}", lambda value: value > 0, model=MODEL)


def test_without_keys_it_refuses_to_listen_beyond_loopback(start_server: StartServer) -> None:
    with pytest.raises(AssertionError, match="exited with") as refused:
        start_server("--host", "0.0.0.0")
    assert "api-key" in str(refused.value).lower() and "Traceback" not in str(refused.value)
