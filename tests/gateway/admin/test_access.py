"""Who may look at /admin and change it: keys, loopback, DNS rebinding, other sites' pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx
import pytest

from gateway.admin.access import OWN_HEADER
from gateway.auth import tenant_id
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import Policies
from policies.tenants import AdminSection
from tests.gateway.conftest import http_client

PATH = "/admin/policies"
JSON = {"content-type": "application/json"}
OWN = {**JSON, OWN_HEADER: "1"}
DONE = 400
"""What a change comes to in these tests, once it is allowed: no supervisor has started this process."""
KEYS = {name: f"sk-{name}" for name in ("boss", "tenant")}


@pytest.fixture
async def open_http() -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(build_app(Settings(), Policies())) as client:
        yield client


@pytest.fixture
async def keyed_http() -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(
        api_keys=tuple(KEYS.values()), key_tenants={tenant_id(key): name for name, key in KEYS.items()}
    )
    policies = Policies(admin=AdminSection(principals=["boss"]))
    async with http_client(build_app(settings, policies)) as client:
        yield client


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:80", "127.9.9.9"])
async def test_without_keys_this_machine_may_look_and_change(open_http: httpx.AsyncClient, host: str) -> None:
    assert (await open_http.get(PATH, headers={"host": host})).status_code == 200
    same = {**OWN, "host": host, "origin": f"http://{host}"}
    assert (await open_http.post(PATH, headers=same)).status_code == DONE


REBOUND = (
    "evil.example",
    "evil.example:80",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "10.0.0.1",
    "0x7f.1",
    "",
    "[::1",
    "localhost@evil.example",
    "evil.example#localhost",
    "0.0.0.0",
    "localhost\\.evil",
    "[::ffff:1.2.3.4]",
    "evil.example@localhost",
    "localhost/evil.example",
    "localhost#evil.example",
    "evil.example\\@localhost",
    "localhost:1:2",
)


@pytest.mark.parametrize("host", REBOUND)
async def test_a_rebound_name_is_refused(open_http: httpx.AsyncClient, host: str) -> None:
    answer = await open_http.get(PATH, headers={"host": host})
    assert answer.status_code == 403 and answer.json()["error"]["param"] == "host"


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:9", "http://localhost.evil.example", "x", "file://"],
)
async def test_another_sites_page_is_refused(open_http: httpx.AsyncClient, origin: str) -> None:
    headers = {**OWN, "host": "localhost:8000", "origin": origin}
    answer = await open_http.post(PATH, headers=headers)
    assert answer.status_code == 403 and answer.json()["error"]["param"] == "origin"


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("none", 200)])
async def test_an_image_of_another_sites_page_is_refused(
    open_http: httpx.AsyncClient, site: str, status: int
) -> None:
    """Such a request has no `Origin`, and would begin streams that its page cannot read."""
    headers = {"host": "localhost:8000", "sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
    assert (await open_http.get(PATH, headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 403),
        ({OWN_HEADER: "1", "content-type": "text/plain"}, 415),
        ({OWN_HEADER: "1", "content-type": "application/x-www-form-urlencoded"}, 415),
        ({OWN_HEADER: "1"}, 415),
        (OWN, DONE),
    ],
)
async def test_a_form_of_another_site_changes_nothing(
    open_http: httpx.AsyncClient, headers: Mapping[str, str], status: int
) -> None:
    answer = await open_http.post(PATH, headers={"host": "localhost", **headers})
    assert answer.status_code == status


@pytest.mark.parametrize("name", ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"])
async def test_what_a_proxy_passes_on_is_refused_without_keys(
    open_http: httpx.AsyncClient, keyed_http: httpx.AsyncClient, name: str
) -> None:
    answer = await open_http.get(PATH, headers={"host": "localhost", name: "203.0.113.9"})
    assert answer.status_code == 403 and answer.json()["error"]["param"] == name
    boss = {"authorization": f"Bearer {KEYS['boss']}", name: "203.0.113.9"}
    assert (await keyed_http.get(PATH, headers=boss)).status_code == 200


async def test_with_keys_the_policies_principals_may(keyed_http: httpx.AsyncClient) -> None:
    boss, tenant = ({"authorization": f"Bearer {key}"} for key in KEYS.values())
    assert (await keyed_http.get(PATH, headers=boss)).status_code == 200
    assert (await keyed_http.post(PATH, headers={**boss, **JSON})).status_code == DONE
    for method in ("GET", "POST"):
        answer = await keyed_http.request(method, PATH, headers={**tenant, **JSON})
        assert answer.status_code == 403 and "admin.principals" in answer.json()["error"]["message"]
        assert (await keyed_http.request(method, PATH, headers=JSON)).status_code == 401
        cookie = {**JSON, "cookie": f"key={KEYS['boss']}; authorization=Bearer {KEYS['boss']}"}
        assert (await keyed_http.request(method, PATH, headers=cookie)).status_code == 401
