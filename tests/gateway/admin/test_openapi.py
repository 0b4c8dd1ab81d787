"""/openapi.json: valid, complete, true to what is served, and without anything of one caller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate
from starlette.routing import Route

from gateway.admin import openapi
from gateway.admin.access import OWN_HEADER
from gateway.admin.request_types import BODIES, REQUEST_HEADERS, RESPONSE_HEADERS
from gateway.auth import tenant_id
from gateway.settings import Settings
from gateway.web.asgi_endpoint import AsgiEndpoint
from gateway.wiring.app import build_app
from policies.document import ModelEntry, PassthroughRule, Policies
from policies.tenants import AdminSection
from policies.upstream import UpstreamModel
from tests.gateway.conftest import MakeApp, http_client

ROOT = Path(openapi.__file__).parents[2]
WITHOUT_FIELDS = re.compile(r"/cancel$|^/admin/|^/v1/files$")
"""POSTs whose body is empty, a form, or the matter of the console alone."""


@pytest.fixture
async def shown(http: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get("/openapi.json")).json()
    return found


async def test_the_document_is_valid_openapi(shown: dict[str, Any]) -> None:
    assert shown["openapi"].startswith("3.1")
    validate(shown)
    operations = [each for of in shown["paths"].values() for each in of.values()]
    assert [each["operationId"] for each in operations if not each["summary"]] == []


async def test_every_route_and_method_is_in_it_but_another_api_is_not() -> None:
    entry = ModelEntry(upstream=UpstreamModel(base_url="http://127.0.0.1:1/v1"))
    policies = Policies(models={"m": entry}, passthrough={"/v1/audio": PassthroughRule(model="m")})
    app = build_app(Settings(), policies)
    async with http_client(app) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        if isinstance(route, Route) and isinstance(route.endpoint, AsgiEndpoint)
        for method in route.endpoint.handlers
    }
    passed = {each for each in served if each[0].startswith("/v1/audio")}
    assert passed and ("/openapi.json", "get") in served
    assert {(path, method) for path, of in paths.items() for method in of} == served - passed


async def test_every_body_of_a_post_is_described_and_every_description_is_of_one(
    shown: dict[str, Any],
) -> None:
    posts = {path: of["post"]["requestBody"] for path, of in shown["paths"].items() if "post" in of}
    schemas = {
        path: body["content"].get("application/json", {}).get("schema", {}) for path, body in posts.items()
    }
    without = {path for path, schema in schemas.items() if "$ref" not in schema}
    assert {path for path in without if not WITHOUT_FIELDS.search(path)} == set()
    assert set(BODIES) <= set(posts)


@pytest.mark.parametrize("path", [path for path, body in BODIES.items() if body.example])
async def test_the_examples_are_understood(make_app: MakeApp, shown: dict[str, Any], path: str) -> None:
    body = shown["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
    async with http_client(make_app()) as client:
        answer = await client.post(path, json=body)
    cannot = ("has no tokenizer here", "does not rank documents")  # such is the fake
    assert answer.status_code == 200 or any(each in answer.text for each in cannot), answer.text


async def test_streams_are_told_where_they_can_be_asked_for(shown: dict[str, Any]) -> None:
    def media(path: str, method: str = "post") -> set[str]:
        return set(shown["paths"][path][method]["responses"]["200"]["content"])

    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"):
        assert media(path) == {"application/json", "text/event-stream"}
    assert "text/event-stream" in media("/v1/responses/{id}", "get")
    assert "text/event-stream" in media("/admin/live", "get")
    assert media("/v1/embeddings") == {"application/json"}
    assert media("/metrics", "get") == {"text/plain"}
    assert media("/docs", "get") == {"text/html"}


async def test_fields_have_types_bounds_and_what_the_code_says_of_them(shown: dict[str, Any]) -> None:
    chat = shown["components"]["schemas"]["ChatRequest"]
    assert set(chat["required"]) == {"model", "messages"}
    assert chat["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0.0, "maximum": 2.0}
    assert chat["properties"]["audio"]["description"] == "refused by embedded engines: audio output"
    assert chat["properties"]["stop"]["description"].startswith("a string, or up to four")
    invalidate = shown["components"]["schemas"]["InvalidateRequest"]["properties"]
    assert invalidate["entry"]["description"] == "as in the header `x-penstock-cache-entry`"


async def test_errors_have_the_shape_of_their_api(shown: dict[str, Any]) -> None:
    def errors(path: str) -> str:
        found: str = shown["paths"][path]["post"]["responses"]["default"]["$ref"]
        return found.rpartition("/")[2]

    assert (errors("/v1/chat/completions"), errors("/v1/messages")) == ("Error", "AnthropicError")
    assert "- 429 `rate_limit_error`: Too many requests" in shown["info"]["description"]


async def test_all_headers_of_ours_are_described() -> None:
    used = {
        name
        for path in (ROOT / "gateway").rglob("*.py")
        for name in re.findall(r"\"(x-penstock-[a-z-]+)\"", path.read_text())
    }
    described = {*REQUEST_HEADERS, *RESPONSE_HEADERS}
    assert used - {OWN_HEADER} == {name for name in described if name.startswith("x-penstock-")}


async def test_where_there_are_keys_it_needs_one_and_names_no_tenant() -> None:
    keys = {tenant_id(f"sk-{name}"): name for name in ("millers-guild", "weavers-guild")}
    settings = Settings(api_keys=tuple(f"sk-{name}" for name in keys.values()), key_tenants=keys)
    policies = Policies(admin=AdminSection(principals=["millers-guild"]))
    async with http_client(build_app(settings, policies)) as client:
        assert (await client.get("/openapi.json")).status_code == 401
        answer = await client.get("/openapi.json", headers={"authorization": "Bearer sk-weavers-guild"})
    assert answer.status_code == 200 and "guild" not in answer.text
    shown = answer.json()
    assert shown["security"] == [{"bearer": []}]
    open_paths = {path for path, of in shown["paths"].items() if of.get("get", {}).get("security") == [{}]}
    assert {"/health", "/metrics", "/docs", "/console/"} <= open_paths
    assert not [path for path in open_paths if path.startswith(("/v1", "/admin", "/openapi"))]


async def test_it_is_made_once_for_a_version(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await http.get("/openapi.json")
    monkeypatch.setattr(openapi, "document", lambda *_: pytest.fail("made again"))
    again = await http.get("/openapi.json", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await http.get("/openapi.json")).content == first.content


async def test_the_page_is_off_with_the_console() -> None:
    async with http_client(build_app(Settings(), Policies(console=False))) as client:
        assert (await client.get("/docs")).status_code == 404
        assert (await client.get("/openapi.json")).status_code == 200
