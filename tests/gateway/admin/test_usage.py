"""Usage over HTTP: own rows for a tenant, all for operators, and parameters that are refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.accounting.usage_rows import SCHEMA, UsageRows
from gateway.admin.usage import UsageQuery
from gateway.auth import tenant_id
from gateway.database.sqlite import SqliteDatabase
from gateway.errors import InvalidRequest
from gateway.response_cache.use import user_digest
from gateway.settings import Settings
from gateway.wiring.app import build_version
from gateway.wiring.worker_parts import build_parts
from policies.document import Policies
from policies.tenants import AdminSection
from tests.gateway.accounting.receipts import NOW_S, receipt_with
from tests.gateway.conftest import http_client

JO = "jo@example.com"
RECEIPTS = [
    receipt_with(),
    receipt_with(ended_s=NOW_S - 86_400, is_estimated=True, user=user_digest("a", JO)),
    receipt_with(model="large", cost_usd=2.0, cache="exact"),
    receipt_with(status=429, cost_usd=0.0, input_tokens=0, output_tokens=0),
    receipt_with(tenant="b", input_tokens=100),
]
KEYS = {name: f"sk-{name}" for name in ("a", "b", "boss")}
ALL = {"since": "2026-11-01", "until": "2026-12-01"}


@pytest.fixture
async def folder(tmp_path: Path) -> str:
    rows = UsageRows(SqliteDatabase(str(tmp_path), "usage", SCHEMA), now_s=lambda: NOW_S)
    for receipt in RECEIPTS:
        rows.receive(receipt)
    await rows.close()
    return str(tmp_path)


@pytest.fixture
async def http(folder: str) -> AsyncIterator[httpx.AsyncClient]:
    policies = Policies(admin=AdminSection(principals=["boss"]))
    settings = Settings(
        api_keys=tuple(KEYS.values()),
        key_tenants={tenant_id(key): name for name, key in KEYS.items()},
        data_dir=folder,
    )
    parts = build_parts(settings, [])
    async with http_client(build_version(settings, policies, parts).router) as client:
        yield client
    await parts.close()


async def ask(http: httpx.AsyncClient, caller: str, /, **query: str) -> httpx.Response:
    return await http.get("/v1/usage", params=query, headers={"authorization": f"Bearer {KEYS[caller]}"})


def brief(answer: httpx.Response) -> list[tuple[object, ...]]:
    groups: list[dict[str, Any]] = answer.json()["data"]
    return [tuple(group.values())[:3] for group in groups]


async def test_a_tenant_sees_its_own(http: httpx.AsyncClient) -> None:
    answer = await ask(http, "a", by="tenant,model", **ALL)
    assert brief(answer) == [("a", "large", 1), ("a", "m", 3)]
    assert answer.json()["data"][1] == {
        "tenant": "a",
        "model": "m",
        "requests": 3,
        "errors": 1,
        "input_tokens": 6,
        "output_tokens": 8,
        "cached_tokens": 3,
        "cache_write_tokens": 6,
        "reasoning_tokens": 3,
        "cache_hits": 0,
        "estimated_requests": 1,
        "cost_usd": 0.5,
        "machine_seconds": 1.5,
        "estimated_share": 0.3333,
    }
    assert answer.json()["has_more"] is False
    for query in ({"by": "tenant"}, {"by": "user", "tenant": "a"}, {"by": "key", "model": "m"}):
        assert "100" not in str((await ask(http, "a", **query, **ALL)).json()["data"])


@pytest.mark.parametrize("name", ["b", "boss", "a' OR '1'='1"])
async def test_a_tenant_may_not_ask_for_another(http: httpx.AsyncClient, name: str) -> None:
    answer = await ask(http, "a", tenant=name)
    assert answer.status_code == 403 and answer.json()["error"]["param"] == "tenant"
    assert (await http.get("/v1/usage")).status_code == 401


async def test_an_operator_sees_all(http: httpx.AsyncClient) -> None:
    assert brief(await ask(http, "boss", by="tenant,status", **ALL)) == [
        ("a", 200, 3),
        ("b", 200, 1),
        ("a", 429, 1),
    ]
    assert brief(await ask(http, "boss", by="tenant", tenant="b", **ALL))[0][:2] == ("b", 1)


async def test_groups_by_time_come_in_its_order(http: httpx.AsyncClient) -> None:
    assert [row[:2] for row in brief(await ask(http, "a", by="day", **ALL))] == [
        ("2026-11-24", 1),
        ("2026-11-25", 3),
    ]
    assert brief(await ask(http, "a", by="month,hour", **ALL))[0] == ("2026-11", "2026-11-24T09", 1)
    assert brief(await ask(http, "a", by="day", since="2026-11-25", until="2026-11-26"))[0][1] == 3
    assert brief(await ask(http, "a", by="month", since="2026-01-01", until="2026-01-02")) == []


async def test_filters(http: httpx.AsyncClient) -> None:
    assert brief(await ask(http, "a", by="model", model="large", **ALL))[0][:2] == ("large", 1)
    digest = user_digest("a", JO)
    for user in (JO, digest):
        assert brief(await ask(http, "a", by="user", user=user, **ALL))[0][:2] == (digest, 1)
    assert brief(await ask(http, "b", by="user", user=JO, **ALL)) == []
    assert brief(await ask(http, "a", by="status", status="429", **ALL))[0][:2] == (429, 1)
    answer = await ask(http, "boss", user=JO, **ALL)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "user"


async def test_a_list_that_is_cut_says_so(http: httpx.AsyncClient) -> None:
    answer = await ask(http, "a", by="model,day", limit="2", **ALL)
    assert len(answer.json()["data"]) == 2 and answer.json()["has_more"] is True


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"by": "prompt"}, "by"),
        ({"by": "tenant;DROP"}, "by"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-11-25T10:00:00"}, "since"),  # without a zone
        ({"since": "2026-13-01"}, "since"),
        ({"until": "9999-99-99"}, "until"),
        ({"since": "2026-11-02", "until": "2026-11-01"}, "since"),
        ({"limit": "0"}, "limit"),
        ({"limit": "99999999999"}, "limit"),
        ({"status": "ok"}, "status"),
        ({"group_by": "model"}, "group_by"),
    ],
)
async def test_bad_parameters_are_refused_by_name(
    http: httpx.AsyncClient, query: dict[str, str], param: str
) -> None:
    answer = await ask(http, "a", **query)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


async def test_a_gateway_without_keys_shows_all(folder: str) -> None:
    settings = Settings(data_dir=folder)
    parts = build_parts(settings, [])
    async with http_client(build_version(settings, Policies(), parts).router) as client:
        assert len(brief(await client.get("/v1/usage", params={"by": "tenant", **ALL}))) == 2
    await parts.close()


async def test_a_gateway_without_a_folder_names_the_remedy() -> None:
    parts = build_parts(Settings(), [])
    async with http_client(build_version(Settings(), Policies(), parts).router) as client:
        answer = await client.get("/v1/usage")
        assert answer.status_code == 404 and "PENSTOCK_DATA_DIR" in answer.text
    await parts.close()


@pytest.mark.parametrize(
    ("text", "since_s"),
    [
        ("7d", NOW_S - 7 * 86_400),
        ("90m", NOW_S - 5400),
        ("2026-11-01", 1_793_491_200.0),
        ("2026-11-01T02:00:00 02:00", 1_793_491_200.0),  # "+" as URLs have it
        ("2026-11-01T00:00:00Z", 1_793_491_200.0),
    ],
)
def test_times(text: str, since_s: float) -> None:
    assert UsageQuery.read({"since": text}, NOW_S).since_s == since_s
    with pytest.raises(InvalidRequest):
        UsageQuery.read({"since": f"{text}x"}, NOW_S)
