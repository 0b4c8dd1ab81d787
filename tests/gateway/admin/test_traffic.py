"""Traffic: figures equal the receipts, for operators alone; bad parameters are refused by name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.accounting.receipt import Receipt
from gateway.accounting.usage_rows import SCHEMA, UsageRows
from gateway.admin.traffic import GROUPS, SPANS, TrafficQuery
from gateway.auth import tenant_id
from gateway.database.sqlite import SqliteDatabase
from gateway.settings import Settings
from gateway.wiring.app import build_version
from gateway.wiring.worker_parts import build_parts
from policies.document import Policies
from policies.tenants import AdminSection
from policies.usage import UsageSection
from tests.gateway.accounting.receipts import receipt_with
from tests.gateway.conftest import http_client

KEYS = {name: f"sk-{name}" for name in ("a", "boss")}
HOSTILE = "<img src=x onerror=alert(1)>'; DROP TABLE usage_sums; --"


def receipts(now_s: float) -> list[Receipt]:
    return [
        receipt_with(ended_s=now_s, route="auto"),
        receipt_with(ended_s=now_s - 2 * 3600, duration_s=4.0),
        receipt_with(ended_s=now_s, tenant="b", status=429, error_type="RateLimited", cost_usd=0.0),
        receipt_with(ended_s=now_s, tenant="b", model=HOSTILE, cache="exact", first_token_s=None),
        receipt_with(ended_s=now_s - 3 * 86_400, tenant="b", model="old"),
    ]


@contextlib.asynccontextmanager
async def serving(
    folder: str, *, is_open: bool = False, keep_days: int = 90
) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(
        api_keys=() if is_open else tuple(KEYS.values()),
        key_tenants={tenant_id(key): name for name, key in KEYS.items()},
        data_dir=folder,
    )
    parts = build_parts(settings, ["m"])
    policies = Policies(admin=AdminSection(principals=["boss"]), usage=UsageSection(keep_days=keep_days))
    parts.use_policies(policies)
    async with http_client(build_version(settings, policies, parts).router, host="localhost") as client:
        yield client
    await parts.close()


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    now_s = time.time()
    rows = UsageRows(SqliteDatabase(str(tmp_path), "usage", SCHEMA))
    for receipt in receipts(now_s):
        rows.receive(receipt)
    await rows.close()
    async with serving(str(tmp_path)) as client:
        yield client


async def ask(http: httpx.AsyncClient, caller: str = "boss", /, **query: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS[caller]}"}
    return await http.get("/admin/traffic", params=query, headers=headers)


def by_name(answer: httpx.Response) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in answer.json()["groups"]}


async def test_groups_are_what_receipts_say(http: httpx.AsyncClient) -> None:
    groups = by_name(await ask(http, by="tenant", since="24h"))
    assert set(groups) == {"a", "b"}
    a, b = groups["a"], groups["b"]
    assert (a["requests"], a["errors"], a["input_tokens"], a["output_tokens"]) == (2, 0, 6, 8)
    assert (a["cost_usd"], a["machine_seconds"]) == (0.5, 1.0)
    assert 0.5 < a["p50_s"] < 1.3 and 2.5 < a["p99_s"] < 4.2 and 0.06 < a["first_token_p50_s"] < 0.13
    assert (b["requests"], b["errors"], b["errors_by_class"]) == (2, 1, {"RateLimited": 1})
    assert (b["cache_hits"], b["cost_usd"]) == (1, 0.25)


@pytest.mark.parametrize("since", SPANS)
async def test_totals_groups_and_series_agree(http: httpx.AsyncClient, since: str) -> None:
    for by in GROUPS:
        if by == "hour" and since in ("7d", "30d"):
            continue
        answer = (await ask(http, by=by, since=since)).json()
        expected = {"1h": 3, "24h": 4}.get(since, 5)
        assert answer["total"]["requests"] == expected, (by, since)
        for part in ("groups", "series"):
            assert sum(each["requests"] for each in answer[part]) == expected, (by, since, part)
        assert sum(row["requests"] for row in answer["shares"]) == expected
        lines = [line[0] for each in answer["series"] for line in each["groups"].values()]
        assert sum(lines) == (0 if by in ("day", "hour") else expected)


async def test_names_of_others_are_text(http: httpx.AsyncClient) -> None:
    assert HOSTILE in by_name(await ask(http, by="model", since="1h"))
    assert (await ask(http, by="model", since="30d")).json()["total"]["requests"] == 5


async def test_a_list_that_is_cut_says_so(http: httpx.AsyncClient) -> None:
    answer = (await ask(http, by="model", since="30d", limit="1")).json()
    assert [group["name"] for group in answer["groups"]] == ["m"] and answer["has_more"] is True


async def test_only_operators_may_look(http: httpx.AsyncClient) -> None:
    refused = await ask(http, "a")
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "administration_forbidden"
    assert "groups" not in refused.text
    assert (await http.get("/admin/traffic")).status_code == 401


async def test_an_empty_ledger_is_no_error(tmp_path: Path) -> None:
    async with serving(str(tmp_path), is_open=True) as client:
        answer = (await client.get("/admin/traffic")).json()
    assert (answer["source"], answer["groups"], answer["shares"]) == ("ledger", [], [])
    assert len(answer["series"]) == 25 and not any(each["requests"] for each in answer["series"])
    assert answer["total"]["requests"] == 0 and answer["total"]["p99_s"] is None


MIDNIGHT_S = 1_795_564_800.0  # 2026-11-25T00:00:00Z


@pytest.mark.parametrize("now_s", [MIDNIGHT_S, MIDNIGHT_S - 0.001, MIDNIGHT_S + 3599.999, MIDNIGHT_S + 59.9])
async def test_series_have_every_period_once_around_midnight(tmp_path: Path, now_s: float) -> None:
    rows = UsageRows(SqliteDatabase(str(tmp_path), "usage", SCHEMA), now_s=lambda: now_s)
    for ago_s in (0.0, 59.0, 3599.0, 86_000.0, -5.0):  # one of a clock that is ahead
        rows.receive(receipt_with(ended_s=now_s - ago_s))
    await rows.close()
    reading = UsageRows(SqliteDatabase(str(tmp_path), "usage", SCHEMA))
    for since, (count, requests) in {"1h": (61, 4), "24h": (25, 5), "7d": (8, 5), "30d": (31, 5)}.items():
        answer = await reading.read(TrafficQuery.read({"since": since}, now_s).answer, "")
        periods = [each["at"] for each in answer["series"]]
        assert periods == sorted(set(periods)) and len(periods) == count
        assert answer["total"]["requests"] == requests == answer["groups"][0]["requests"]
        assert sum(each["requests"] for each in answer["series"]) >= requests - 1
    await reading.close()


async def test_a_ledger_that_keeps_nothing_says_so(tmp_path: Path) -> None:
    async with serving(str(tmp_path), is_open=True, keep_days=0) as client:
        assert "keep_days" in (await client.get("/admin/traffic")).json()["note"]


async def test_without_a_data_folder_metrics_answer() -> None:
    async with serving("", is_open=True) as client:
        assert (await client.get("/v1/models")).status_code == 200
        for by in GROUPS:
            answer = (await client.get("/admin/traffic", params={"by": by})).json()
            assert answer["source"] == "metrics" and "PENSTOCK_DATA_DIR" in answer["note"]
            if by == "endpoint":
                [group] = answer["groups"]
                assert (group["name"], group["requests"], group["errors"]) == ("models", 1, 0)
                assert 0 < group["p50_s"] <= group["p99_s"]
        await client.get("/v1/usage")  # counts as "other"
        cut = (await client.get("/admin/traffic", params={"by": "endpoint", "limit": "1"})).json()
        assert (len(cut["groups"]), cut["has_more"]) == (1, True)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"since": "2h"}, "since"),
        ({"since": ""}, None),  # as if it were not given
        ({"since": "24H"}, "since"),
        ({"since": "1h "}, "since"),
        ({"since": "-1h"}, "since"),
        ({"since": "99999999999d"}, "since"),
        ({"since": "2026-11-01"}, "since"),
        ({"since": "1h; DROP TABLE usage_sums"}, "since"),
        ({"since": "\u0661h"}, "since"),
        ({"since": "1h\x00"}, "since"),
        ({"by": "user"}, "by"),
        ({"by": "key"}, "by"),
        ({"by": "tenant,model"}, "by"),
        ({"by": "tenant--"}, "by"),
        ({"by": "sums"}, "by"),
        ({"by": "__class__"}, "by"),
        ({"by": "TENANT"}, "by"),
        ({"by": "x" * 5000}, "by"),
        ({"by": "hour", "since": "30d"}, "by"),
        ({"by": "hour", "since": "7d"}, "by"),
        ({"limit": "0"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "1e3"}, "limit"),
        ({"limit": "9" * 4000}, "limit"),
        ({"limit": "\u0661"}, "limit"),
        ({"limit": "1 OR 1=1"}, "limit"),
        ({"limit": "0x10"}, "limit"),
        ({"tenant": "a"}, "tenant"),
        ({"until": "2026-11-01"}, "until"),
        ({"SINCE": "1h"}, "SINCE"),
        ({"since[]": "1h"}, "body"),
    ],
)
async def test_bad_parameters_are_refused(
    http: httpx.AsyncClient, query: dict[str, str], param: str | None
) -> None:
    answer = await ask(http, **query)
    if param is None:
        assert answer.status_code == 200
        return
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert (answer.json()["error"]["param"] or "body") == param and len(message) < 400
