"""The public HTTP API with a scripted provider."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from backend.errors import CheckpointError
from backend.tokenizer import Tokenizer
from gateway.processes.status import ProcessStatus, RepeatedFailure
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.fake import FakeProvider
from gateway.settings import Settings
from gateway.wiring.app import build_app
from gateway.wiring.model_builder import ModelBuilder
from gateway.wiring.worker_parts import build_parts
from policies.document import EngineModel, ModelEntry, Policies, Reasoning
from policies.engine_addresses import EngineConnection
from tests.backend.tokenizer.checkpoints import save_byte_level
from tests.gateway.conftest import MakeApp, http_client
from tests.gateway.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "ours", "messages": [{"role": "user", "content": "hi"}]}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


async def test_a_chat(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=BODY)
    assert response.status_code == 200
    assert response.headers["x-penstock-policy"] == "v1"
    answer = response.json()
    assert set(answer) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "Hello, world!"
    assert answer["usage"]["total_tokens"] == 10


async def test_a_route_answers_with_its_models_name(http: httpx.AsyncClient) -> None:
    assert (await http.post(CHAT, json=BODY | {"model": "auto"})).json()["model"] == "ours"


async def test_metadata_and_tier_come_back(http: httpx.AsyncClient) -> None:
    answer = (await http.post(CHAT, json=BODY | {"metadata": {"a": "b"}, "service_tier": "auto"})).json()
    assert (answer["metadata"], answer["service_tier"]) == ({"a": "b"}, "default")


async def test_completions(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/completions", json={"model": "ours", "prompt": ["a", "b"], "n": 2})).json()
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
    expected = {"text": "Hello, world!", "logprobs": None, "finish_reason": "stop"}
    assert answer["choices"] == [{"index": index, **expected} for index in range(4)]


async def test_embeddings(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/embeddings", json={"model": "ours", "input": ["a", "bc"]})).json()
    assert answer["data"] == [
        {"object": "embedding", "index": 0, "embedding": [0.0, 1.0, 1.0]},
        {"object": "embedding", "index": 1, "embedding": [1.0, 2.0, 1.0]},
    ]
    assert answer["usage"] == {"prompt_tokens": 14, "total_tokens": 14}


async def test_models(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == ["ours", "theirs", "auto"]
    assert (await http.get("/v1/models/theirs")).json() == listed["data"][1]
    assert listed["data"][1]["owned_by"] == "upstream"
    error = error_of(await http.get("/v1/models/their"), 404)
    assert error["code"] == "model_not_found" and "'theirs'" in error["message"]


async def test_an_unknown_model_is_a_404(http: httpx.AsyncClient) -> None:
    error = error_of(await http.post(CHAT, json=BODY | {"model": "our"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/audio", "/v1/chat/completions/"])
async def test_other_paths_are_a_404(http: httpx.AsyncClient, path: str) -> None:
    assert error_of(await http.post(path), 404)["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/embeddings", "POST"), ("POST", "/v1/models", "GET"), ("DELETE", "/v1/models/ours", "GET")],
)
async def test_other_methods_are_a_405(http: httpx.AsyncClient, method: str, path: str, allowed: str) -> None:
    response = await http.request(method, path)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
async def test_only_json_is_read(http: httpx.AsyncClient, kind: str) -> None:
    response = await http.post(CHAT, content=json.dumps(BODY), headers={"content-type": kind})
    assert error_of(response, 415)["code"] == "unsupported_media_type"


async def test_json_with_a_charset_is_json(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await http.post(CHAT, content=json.dumps(BODY), headers=headers)).status_code == 200


async def test_compressed_bodies_are_refused(http: httpx.AsyncClient) -> None:
    error_of(await http.post(CHAT, json=BODY, headers={"content-encoding": "gzip"}), 415)


async def test_large_bodies_are_refused_with_or_without_a_length(make_app: MakeApp) -> None:
    async def pieces() -> Any:  # noqa: ANN401
        for _ in range(4):
            yield b" " * 400

    async with http_client(make_app(max_body_bytes=1000)) as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        assert error_of(await client.post(CHAT, content=b" " * 1001), 413)["code"] == "request_too_large"
        headers = {"content-type": "application/json"}
        error_of(await client.post(CHAT, content=pieces(), headers=headers), 413)


async def test_request_ids_are_returned_when_they_are_safe_to_log(http: httpx.AsyncClient) -> None:
    good = await http.get("/health/live", headers={"x-request-id": "a-1/B:2"})
    assert good.headers["x-request-id"] == "a-1/B:2"
    for bad in ("", "a b", "x" * 129, "a\tb"):
        made = (await http.get("/health/live", headers={"x-request-id": bad})).headers["x-request-id"]
        assert made.startswith("req_") and made != bad


async def test_keys(make_app: MakeApp, fake: FakeProvider) -> None:
    app = make_app(api_keys=("sk-right",))
    async with http_client(app) as client:
        for path in (CHAT, "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"):
            response = await client.post(path, json=BODY)
            assert error_of(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/models", "/v1/models/ours"):
            error_of(await client.get(path), 401)
        assert (await client.get("/health/live")).status_code == 200
    assert fake.asked == []
    async with http_client(app, authorization="Bearer sk-right") as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize"])
async def test_a_key_may_come_as_x_api_key(make_app: MakeApp, path: str) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    async with http_client(make_app(api_keys=("sk-right",))) as client:

        async def status(**headers: str) -> int:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await client.request(method, path, json=BODY, headers=names)).status_code

        for wrong in ("sk-wrong", "", "Bearer sk-right"):
            assert await status(x_api_key=wrong) == 401
        assert await status(x_api_key="sk-right") != 401
        assert await status(x_api_key="sk-right", authorization="Bearer sk-wrong") == 401


async def test_no_body_is_read_for_an_unknown_caller(make_app: MakeApp) -> None:
    async with http_client(make_app(api_keys=("sk-right",), max_body_bytes=10)) as client:
        error_of(await client.post(CHAT, content=b"x" * 100), 401)


async def test_internal_errors_show_nothing(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeProvider):
        async def chat(self, call: Any) -> Any:  # noqa: ANN401
            raise ValueError(str(call.body))

    async with http_client(make_app(Broken())) as client:
        body = BODY | {"user": "my secret"}
        response = await client.post(CHAT, json=body, headers={"x-request-id": "find-me"})
    assert error_of(response, 500)["type"] == "server_error"
    assert "secret" not in response.text + caplog.text
    assert "find-me failed with ValueError" in caplog.text and "test_app.py" in caplog.text


async def test_metrics_count_by_endpoint_and_model(http: httpx.AsyncClient) -> None:
    await http.post(CHAT, json=BODY)
    await http.post(CHAT, json=BODY | {"temperature": 9})
    text = (await http.get("/metrics")).text
    assert 'penstock_requests_total{endpoint="chat",model="ours",status="2xx"} 1.0' in text
    assert 'penstock_requests_total{endpoint="chat",model="-",status="4xx"} 1.0' in text
    assert 'penstock_tokens_total{endpoint="chat",kind="output",model="ours"} 3.0' in text.replace(
        'model="ours",kind="output"', 'kind="output",model="ours"'
    )
    assert 'penstock_requests_in_flight{endpoint="chat"} 0.0' in text


async def test_readiness_follows_the_engine(
    engine: ScriptedEngine, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = save_byte_level(tmp_path_factory.mktemp("checkpoint"))
    policies = Policies(models={"ours": ModelEntry(engine=EngineModel(checkpoint=str(folder)))})
    app = build_app(Settings(socket_paths={"ours": str(engine.path)}), policies)
    async with http_client(app) as http:
        before = await http.get("/health/ready")
        assert before.status_code == 503
        assert {(await http.get(path)).status_code for path in ("/health", "/ready")} == {503}
        assert {(await http.get(path)).status_code for path in ("/health/live", "/healthz")} == {200}
        assert before.json() == {
            "status": "unavailable",
            "models": {"ours": {"ready": False, "phase": "starting", "fraction": 0.0}},
        }
        async with app.lifespan_context(app), asyncio.timeout(5):
            while (ready := await http.get("/health/ready")).status_code != 200:
                await asyncio.sleep(0)
            assert ready.json()["models"]["ours"]["ready"] is True
            for path in ("/health", "/ready"):
                assert (await http.get(path)).json() == ready.json()
            assert (await http.get("/v1/models/ours")).json()["max_model_len"] == 256


async def test_readiness_tells_why_an_engine_fails_again_and_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = save_byte_level(tmp_path_factory.mktemp("checkpoint"))
    policies = Policies(models={"ours": ModelEntry(engine=EngineModel(checkpoint=str(folder)))})
    failure = RepeatedFailure(cause="exit code 2: no weights", count=4, retry_at_s=time.time() + 9)
    statuses = {"ours": ProcessStatus(phase="restarting", failure=failure)}
    app = build_app(Settings(socket_paths={"ours": "/none"}), policies, statuses=statuses)
    async with http_client(app) as http:
        model = (await http.get("/health/ready")).json()["models"]["ours"]
    assert 0 < model["failure"].pop("retry_in_s") <= 9
    assert model.pop("failure") == {"cause": "exit code 2: no weights", "count": 4}
    assert model == {"ready": False, "phase": "restarting", "fraction": 0.0}


def test_a_default_effort_that_the_model_cannot_do_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = save_byte_level(tmp_path_factory.mktemp("checkpoint"))
    engine = EngineModel(checkpoint=str(folder), reasoning=Reasoning(default_effort="high"))
    policies = Policies(models={"ours": ModelEntry(engine=engine)})
    with pytest.raises(CheckpointError, match="default_effort is 'high'.* no reasoning mode"):
        build_app(Settings(socket_paths={"ours": "/none"}), policies)


async def test_where_an_engine_runs_keeps_what_is_cached() -> None:
    def digest(**more: Any) -> str:  # noqa: ANN401
        engine = EngineModel(checkpoint="builtin:pico-small", **more)
        names = ["m", "m#1"]
        settings = Settings(socket_paths=dict.fromkeys(names, "/none"))
        given = Policies(models={"m": ModelEntry(engine=engine)})
        return ModelBuilder(settings, given, {}, build_parts(settings, names)).build("m").policy_digest

    address = ["tcp://127.0.0.1:7600"]
    assert digest() == digest(replicas=2, drain_handover_s=1.0)
    assert digest() == digest(addresses=address) == digest(dns="engines:7600", connection=EngineConnection())
    assert digest() != digest(dtype="float32")


async def test_tokenize_and_back(engine_http: httpx.AsyncClient, provider: EngineProvider) -> None:
    text = "Größe 🎉"
    answer = (await engine_http.post("/tokenize", json={"model": "ours", "prompt": text})).json()
    ids = provider.service.tokenizer.encode(text)
    assert answer == {"count": len(ids), "max_model_len": 256, "tokens": ids, "token_strs": None}
    back = await engine_http.post("/detokenize", json={"model": "ours", "tokens": ids})
    assert back.json() == {"prompt": text}
    messages = {"messages": BODY["messages"], "model": "ours", "return_token_strs": True}
    answer = (await engine_http.post("/tokenize", json=messages)).json()
    assert "".join(answer["token_strs"]).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"prompt": "~" * 2_000_000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "~" * 2_000_000}]}, "messages"),
        ("/detokenize", {"tokens": [5] * 257}, "tokens"),
    ],
)
async def test_the_context_bounds_what_is_tokenised(
    engine_http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    fields: dict[str, Any],
    param: str,
) -> None:
    lengths: list[int] = []
    encode = Tokenizer._encode

    def measured(self: Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "_encode", measured)
    response = await engine_http.post(path, json={"model": "ours"} | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert sum(lengths) < 20_000


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {"model": "ours"}, 400, "prompt"),
        ("/tokenize", {"model": "ours", "prompt": "x", "messages": BODY["messages"]}, 400, "prompt"),
        (
            "/tokenize",
            {"model": "ours", "messages": BODY["messages"], "add_special_tokens": True},
            400,
            "add_special_tokens",
        ),
        ("/tokenize", {"model": "nobody", "prompt": "x"}, 404, "model"),
        ("/tokenize", {"model": "ours", "prompt": "x", "promt": "y"}, 400, "promt"),
        ("/detokenize", {"model": "ours", "tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"model": "ours"}, 400, "tokens"),
    ],
)
async def test_tokenize_refuses_by_name(
    engine_http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    assert error_of(await engine_http.post(path, json=body), status)["param"] == param


async def test_the_fake_has_no_tokenizer(http: httpx.AsyncClient) -> None:
    error_of(await http.post("/tokenize", json={"model": "theirs", "prompt": "x"}), 404)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "Did you mean /v1/chat/completions? A client's base_url ends in /v1."),
        (
            "/v1/v1/chat/completions",
            "Did you mean /v1/chat/completions? A client's base_url ends in one /v1.",
        ),
        ("/v1/responses/", "Did you mean /v1/responses?"),
        ("/openai/v1/chat/completions", "Did you mean /v1/chat/completions?"),
        ("/v1/health/ready", "Did you mean /health/ready?"),
        ("/v1/nothing", "/v1/nothing."),
        ("/", "POST /."),
    ],
)
async def test_an_unknown_path_names_the_one_that_was_meant(
    http: httpx.AsyncClient, path: str, hint: str
) -> None:
    answer = await http.post(path, json=BODY)
    assert error_of(answer, 404)["code"] == "unknown_url"
    assert answer.json()["error"]["message"].endswith(hint)


REMEDY = "Anthropic's base_url ends without /v1: its clients add that themselves."


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1//messages", "Did you mean /v1/messages?"),
        ("/v1/v1/messages", f"Did you mean /v1/messages? {REMEDY}"),
        ("/v1/v1/messages/count_tokens", f"Did you mean /v1/messages/count_tokens? {REMEDY}"),
        ("/v1/v1/messages/batches", f"Did you mean /v1/messages/batches? {REMEDY}"),
        ("/v1/v1/messages/batches/b/results", f"Did you mean /v1/messages/batches/b/results? {REMEDY}"),
        ("/messages", f"Did you mean /v1/messages? {REMEDY}"),
        ("/v1/messages/v1/messages", f"Did you mean /v1/messages? {REMEDY}"),
        ("/anthropic/v1/messages", f"Did you mean /v1/messages? {REMEDY}"),
        ("/v1/messages/nothing", "/v1/messages/nothing."),
        ("/v1/v1/models", f"Did you mean /v1/models? {REMEDY}"),
    ],
)
async def test_an_unknown_path_of_anthropics_api_is_answered_in_its_words(
    http: httpx.AsyncClient, path: str, hint: str
) -> None:
    headers = {"anthropic-version": "2023-06-01"} if path.endswith("models") else {}
    answer = await http.post(path, json=BODY, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (404, "error")
    assert answer.json()["error"]["type"] == "not_found_error"
    assert answer.json()["error"]["message"].endswith(hint)
    assert answer.headers["request-id"] == answer.json()["request_id"]
