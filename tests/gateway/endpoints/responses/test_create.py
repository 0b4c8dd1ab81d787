"""No body gets a 5xx from /v1/responses; what is stored continues a conversation."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.endpoints.responses import create
from gateway.openai.responses.request import ResponsesRequest
from gateway.providers.fake import FakeProvider
from tests.gateway.conftest import MakeApp, http_client

SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
PATH = "/v1/responses"
BODY = {"model": "ours", "input": "Hi."}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("ours"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(["message", "function_call", "function_call_output", "reasoning"])
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image"]) | VALUES},
    optional={name: VALUES for name in ("text", "refusal", "image_url")},
)
CONTENT = st.text(max_size=6) | st.lists(PARTS | VALUES, max_size=2) | VALUES
ITEMS = st.fixed_dictionaries(
    {"type": KINDS | VALUES},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "developer"]) | VALUES,
        "content": CONTENT,
        "output": CONTENT,
        **{name: st.text(max_size=4) | VALUES for name in ("id", "call_id", "name", "arguments", "summary")},
    },
)


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        assert response.json()["error"]["type"] == "invalid_request_error"


async def post(http: httpx.AsyncClient, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post(PATH, content=content, headers={"content-type": "application/json"})


@SETTINGS
@given(body=st.binary(max_size=60) | VALUES)
async def test_any_body(engine_http: httpx.AsyncClient, body: object) -> None:
    check(await post(engine_http, body))


@SETTINGS
@given(change=st.dictionaries(st.sampled_from(ResponsesRequest.__struct_fields__), VALUES, max_size=2))
async def test_any_values(engine_http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    check(await post(engine_http, BODY | change))


@SETTINGS
@given(items=st.lists(ITEMS, max_size=3))
async def test_any_items(engine_http: httpx.AsyncClient, items: list[dict[str, Any]]) -> None:
    check(await post(engine_http, BODY | {"input": items}))


async def test_a_response_continues_another(http: httpx.AsyncClient, fake: FakeProvider) -> None:
    first = await post(http, BODY | {"instructions": "Be brief."})
    second = await post(http, BODY | {"previous_response_id": first.json()["id"], "input": "And?"})
    assert second.json()["previous_response_id"] == first.json()["id"]
    assert fake.asked[-1].body["messages"] == [  # without the instructions of the first
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello, world!"},
        {"role": "user", "content": "And?"},
    ]


async def test_what_is_not_stored_cannot_be_continued(http: httpx.AsyncClient) -> None:
    first = await post(http, BODY | {"store": False})
    assert first.json()["store"] is False
    found = await post(http, BODY | {"previous_response_id": first.json()["id"]})
    assert (found.status_code, found.json()["error"]["code"]) == (404, "response_not_found")


async def test_an_answer_that_cannot_be_stored_is_an_error(make_app: MakeApp, tmp_path: Any) -> None:  # noqa: ANN401
    (tmp_path / "file").write_text("")
    async with http_client(make_app(data_dir=str(tmp_path / "file"))) as http:
        whole = await post(http, BODY)
        streamed = await post(http, BODY | {"stream": True})
        unstored = await post(http, BODY | {"store": False})
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "object_store_unavailable")
    assert "event: response.failed" in streamed.text and "event: response.completed" not in streamed.text
    assert unstored.status_code == 200


async def test_a_reference_stands_for_an_item_of_a_stored_response(
    http: httpx.AsyncClient, fake: FakeProvider, make_app: MakeApp
) -> None:
    first = (await post(http, BODY)).json()
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    items = [{"role": "user", "content": "Hi."}, reference, {"role": "user", "content": "And?"}]
    second = await post(http, BODY | {"input": items})
    assert second.status_code == 200, second.text
    asked = [message["content"] for message in fake.asked[-1].body["messages"]]
    assert asked == ["Hi.", "Hello, world!", "And?"]
    for item_id in ("msg_1", "msg_" + "0" * 32 + "_0", reference["id"] + "1"):
        found = await post(http, BODY | {"input": [{"type": "item_reference", "id": item_id}]})
        assert (found.status_code, found.json()["error"]["param"]) == (400, "input[0].id")


async def test_references_are_bounded(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "MAX_REFERENCED", 2)
    ids = [(await post(http, BODY)).json()["output"][0]["id"] for _ in range(3)]
    for chosen, status in ((ids[:2] * 50, 200), (ids, 400), (ids[:1] * 100_000, 400)):
        references = [{"type": "item_reference", "id": item_id} for item_id in chosen]
        answered = await post(http, BODY | {"input": references, "store": False})
        assert answered.status_code == status, answered.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
        ({"input": "word " * 300}, "input"),
        ({"reasoning": {"effort": "odd"}}, "reasoning.effort"),
        ({"text": {"verbosity": "odd"}}, "text.verbosity"),
        (
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "a",
                        "schema": {"type": "object"},
                        "strict": True,
                    }
                }
            },
            "text.format",
        ),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {"type": "odd"}}]},
            "tools[0].parameters.type",
        ),
    ],
)
async def test_errors_after_the_translation_have_the_apis_names(
    engine_http: httpx.AsyncClient, change: dict[str, Any], param: str, stream: bool
) -> None:
    response = await post(engine_http, BODY | change | {"stream": stream})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


async def test_errors_of_counting_have_the_apis_names(engine_http: httpx.AsyncClient) -> None:
    body = BODY | {"reasoning": {"effort": "odd"}}
    error = (await engine_http.post(f"{PATH}/input_tokens", json=body)).json()["error"]
    assert error["param"] == "reasoning.effort" and "'reasoning.effort'" in error["message"]
