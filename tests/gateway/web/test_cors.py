"""Pages of the origins that the policies name may call the gateway; other pages may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.routing import Router

from gateway.providers.fake import FakeProvider
from gateway.settings import Settings, SettingsError
from gateway.wiring.app import build_app
from policies.cors import CorsSection
from policies.document import ModelEntry, Policies
from policies.errors import PolicyError
from policies.load import load_policies
from policies.upstream import UpstreamModel
from tests.gateway.conftest import http_client

CHAT = "/v1/chat/completions"
PAGE = "https://app.example.com"
BODY = {"model": "theirs", "messages": [{"role": "user", "content": "hi"}]}
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


def app_for(*origins: str, keys: tuple[str, ...] = ()) -> Router:
    entry = ModelEntry(upstream=UpstreamModel(base_url="http://127.0.0.1:1/v1"))
    policies = Policies(models={"theirs": entry}, cors=CorsSection(origins=list(origins)), version="v1")
    return build_app(Settings(api_keys=keys), policies, {"theirs": FakeProvider()})


async def test_a_preflight_of_a_named_origin_is_answered() -> None:
    async with http_client(app_for(PAGE, keys=("secret",))) as http:
        answer = await http.options(CHAT, headers={"origin": PAGE, **PREFLIGHT})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_reads_answers_errors_and_headers(stream: bool) -> None:
    async with http_client(app_for(PAGE)) as http:
        answer = await http.post(CHAT, json={**BODY, "stream": stream}, headers={"origin": PAGE})
        refused = await http.post(CHAT, json={"model": "none"}, headers={"origin": PAGE})
    assert (answer.status_code, refused.status_code) == (200, 400)
    for each in (answer, refused):
        assert each.headers["access-control-allow-origin"] == PAGE and "Origin" in each.headers["vary"]
        assert each.headers["access-control-expose-headers"] == "*"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", f"{PAGE}.evil.example", "http://app.example.com"]
)
async def test_another_page_is_not_let_in(origin: str) -> None:
    async with http_client(app_for(PAGE)) as http:
        preflight = await http.options(CHAT, headers={"origin": origin, **PREFLIGHT})
        answer = await http.post(CHAT, json=BODY, headers={"origin": origin})
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in {*preflight.headers, *answer.headers}


async def test_it_is_off_by_default() -> None:
    async with http_client(app_for()) as http:
        preflight = await http.options(CHAT, headers={"origin": PAGE, **PREFLIGHT})
        answer = await http.post(CHAT, json=BODY, headers={"origin": PAGE})
    assert preflight.status_code == 405
    assert not [name for name in (*answer.headers, *preflight.headers) if "access-control" in name]


async def test_every_page_may_call_a_gateway_with_keys_only() -> None:
    with pytest.raises(SettingsError, match="cors.origins has '\\*' while no API key is configured"):
        app_for("*")
    async with http_client(app_for("*", keys=("secret",))) as http:
        answer = await http.post(CHAT, json=BODY, headers={"origin": PAGE})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "*")


@pytest.mark.parametrize("origin", ["https://app.example.com/", "app.example.com", "https://APP.example.com"])
def test_what_no_browser_sends_is_refused(tmp_path: Path, origin: str) -> None:
    (tmp_path / "p.yaml").write_text(
        f"models: {{a: {{upstream: {{base_url: http://127.0.0.1:1/v1}}}}}}\ncors: {{origins: ['{origin}']}}\n"
    )
    with pytest.raises(PolicyError, match="p.yaml:2:18"):
        load_policies(tmp_path)
