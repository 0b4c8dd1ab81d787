"""The encoder provider over HTTP; only the vectors are scripted."""

from __future__ import annotations

import struct
from base64 import b64decode
from typing import Any, cast

import httpx
import pytest

from backend.errors import EngineUnavailable, QueueFull, RequestError
from backend.server.encoder_client import Embeddings, EncoderClient
from backend.server.encoder_messages import EncoderHello
from gateway.providers.encoder import EncoderProvider
from tests.gateway.conftest import MakeApp, http_client

PATH = "/v1/embeddings"


class ScriptedClient:
    """In place of the encoder's client: three numbers per input, or an error."""

    def __init__(self) -> None:
        self.hello: EncoderHello | None = EncoderHello("minilm", "/none", max_tokens=256, dimensions=3)
        self.error: Exception | None = None
        self.inputs: list[str] | list[list[int]] = []

    async def embed(self, inputs: list[str] | list[list[int]]) -> Embeddings:
        self.inputs = inputs
        if self.error is not None:
            raise self.error
        return Embeddings([struct.pack("<3f", i, 0.5, -1) for i in range(len(inputs))], [4] * len(inputs))


@pytest.fixture
def scripted() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
def encoder_http(make_app: MakeApp, scripted: ScriptedClient) -> httpx.AsyncClient:
    return http_client(make_app(EncoderProvider("ours", cast(EncoderClient, scripted))))


def body(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"model": "ours", "input": "hi", **more}


@pytest.mark.parametrize(
    ("given", "inputs"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
async def test_inputs_in_all_forms(
    encoder_http: httpx.AsyncClient, scripted: ScriptedClient, given: object, inputs: list[Any]
) -> None:
    answer = (await encoder_http.post(PATH, json=body(input=given))).json()
    assert scripted.inputs == inputs
    assert [entry["embedding"] for entry in answer["data"]] == [[i, 0.5, -1] for i in range(len(inputs))]
    assert answer["usage"] == {"prompt_tokens": 4 * len(inputs), "total_tokens": 4 * len(inputs)}
    assert answer["model"] == "ours"


async def test_base64_is_little_endian_float32(encoder_http: httpx.AsyncClient) -> None:
    answer = (await encoder_http.post(PATH, json=body(encoding_format="base64", dimensions=3))).json()
    assert struct.unpack("<3f", b64decode(answer["data"][0]["embedding"])) == (0, 0.5, -1)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 2}, "dimensions"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": None}, "input"),
        ({"inputs": "x"}, "inputs"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(
    encoder_http: httpx.AsyncClient, change: dict[str, Any], param: str
) -> None:
    response = await encoder_http.post(PATH, json=body(**change))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_its_policy_may_ignore_unknown_fields(make_app: MakeApp, scripted: ScriptedClient) -> None:
    encoder = EncoderProvider("ours", cast(EncoderClient, scripted), "ignore")
    async with http_client(make_app(encoder)) as http:
        response = await http.post(PATH, json=body(truncate=True, dimensions=3.0))
    assert (response.status_code, response.headers["x-penstock-ignored-fields"]) == (200, "truncate")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("input 1 has 300 tokens, more than 256", "input"), 400),
        (QueueFull("full", 1.0), 429),
        (EngineUnavailable("the encoder at '/tmp/x.sock' is gone"), 503),
    ],
)
async def test_the_encoders_errors(
    encoder_http: httpx.AsyncClient, scripted: ScriptedClient, error: Exception, status: int
) -> None:
    scripted.error = error
    response = await encoder_http.post(PATH, json=body())
    assert response.status_code == status and "sock" not in response.text


async def test_a_starting_encoder_is_a_503(encoder_http: httpx.AsyncClient, scripted: ScriptedClient) -> None:
    scripted.hello = None
    assert (await encoder_http.post(PATH, json=body())).status_code == 503


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
    ],
)
async def test_it_generates_nothing(encoder_http: httpx.AsyncClient, path: str, more: dict[str, Any]) -> None:
    response = await encoder_http.post(path, json={"model": "ours", **more})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "model_not_supported")
