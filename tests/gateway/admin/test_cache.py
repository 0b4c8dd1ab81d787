"""Invalidation over HTTP: what is forgotten, for whom, and the receipt."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Any

import httpx
import pytest
from starlette.routing import Router

from gateway.auth import KeyRing
from gateway.providers.fake import FakeProvider
from gateway.response_cache.hit_token import HitToken, write_hit
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.cache import CacheSection
from policies.document import EngineModel, ModelEntry, Policies
from tests.gateway.conftest import http_client

ALICE, BOB, OPERATOR = "sk-alice", "sk-bob", "sk-operator"
URL = "/v1/cache/invalidate"
FEEDBACK = "/v1/cache/feedback"


def tenant(key: str) -> str:
    return f"key-{sha256(key.encode()).hexdigest()[:8]}"


def app_of(workers: int = 1) -> Router:
    models = {name: ModelEntry(engine=EngineModel(checkpoint="/none")) for name in ("small", "large")}
    section = CacheSection(mode="exact", operators=[tenant(OPERATOR)])
    policies = Policies(models=models, cache=section, version="v1")
    settings = Settings(api_keys=(ALICE, BOB, OPERATOR), workers=workers)
    return build_app(settings, policies, dict.fromkeys(models, FakeProvider()))


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(http: httpx.AsyncClient, key: str, text: str, **fields: object) -> httpx.Headers:
    body = {"model": "small", "messages": [{"role": "user", "content": text}], **fields}
    response = await http.post("/v1/chat/completions", json=body, headers=headers(key))
    assert response.status_code == 200, response.text
    return response.headers


async def fill(http: httpx.AsyncClient) -> None:
    for key in (ALICE, BOB):
        await ask(http, key, "plain")
        await ask(http, key, "large", model="large")
        await ask(http, key, "tagged", metadata={"penstock-cache-tags": "faq, v2"})
        await ask(http, key, "user", user="u-1")
        await ask(http, key, "safety", safety_identifier="u-1")


@pytest.mark.parametrize(
    ("key", "body", "count"),
    [
        (ALICE, {"tenant": tenant(ALICE)}, 5),
        (ALICE, {"model": "large"}, 1),
        (ALICE, {"tag": "v2"}, 1),
        (ALICE, {"user": "u-1"}, 2),
        (ALICE, {"user": "u-2"}, 0),
        (OPERATOR, {"tag": "faq", "all_tenants": True}, 2),
        (OPERATOR, {"tenant": tenant(BOB)}, 5),
    ],
)
async def test_invalidate_by(key: str, body: dict[str, Any], count: int) -> None:
    async with http_client(app_of()) as http:
        await fill(http)
        response = await http.post(URL, json=body, headers=headers(key))
        assert response.json() == {"object": "cache.invalidation", "invalidated": count}
        assert (await http.post(URL, json=body, headers=headers(key))).json()["invalidated"] == 0


async def test_an_entry_is_named_by_its_header() -> None:
    async with http_client(app_of()) as http:
        entry = (await ask(http, ALICE, "plain"))["x-penstock-cache-entry"]
        hit = await ask(http, ALICE, "plain")
        assert (hit["x-penstock-cache"], hit["x-penstock-cache-entry"]) == ("exact", entry)
        for key, count in ((BOB, 0), (ALICE, 1)):
            response = await http.post(URL, json={"entry": entry}, headers=headers(key))
            assert response.json()["invalidated"] == count
        assert (await ask(http, ALICE, "plain"))["x-penstock-cache"] == "miss"


@pytest.mark.parametrize(
    ("key", "body", "status", "words"),
    [
        (ALICE, {}, 400, "exactly one of tenant, model, tag, user, entry"),
        (ALICE, {"tag": "a", "model": "b"}, 400, "exactly one"),
        (ALICE, {"tags": "a"}, 400, "tags"),
        (ALICE, {"tag": ""}, 400, "tag"),
        (ALICE, {"tenant": tenant(BOB)}, 403, "cache.operators"),
        (ALICE, {"tag": "a", "all_tenants": True}, 403, "cache.operators"),
        ("sk-unknown", {"tag": "a"}, 401, "API key"),
    ],
)
async def test_refusals(key: str, body: dict[str, Any], status: int, words: str) -> None:
    async with http_client(app_of()) as http:
        response = await http.post(URL, json=body, headers=headers(key))
    assert response.status_code == status and words in response.json()["error"]["message"]


async def test_a_wrong_answer_is_removed_by_its_tenant_only() -> None:
    async with http_client(app_of()) as http:
        entry = (await ask(http, ALICE, "plain"))["x-penstock-cache-entry"]
        body = {"entry": entry, "verdict": "wrong"}
        refused = await http.post(FEEDBACK, json=body, headers=headers(BOB))
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "entry")
        right = await http.post(FEEDBACK, json=body | {"verdict": "right"}, headers=headers(ALICE))
        assert right.json() == {"object": "cache.feedback", "entry": entry, "removed": False}
        wrong = await http.post(FEEDBACK, json=body, headers=headers(ALICE))
        assert wrong.json()["removed"] is True
        assert (await ask(http, ALICE, "plain"))["x-penstock-cache"] == "miss"


def question_of(entry: str, number: int, key: str = ALICE, age_s: float = 0.0) -> str:
    """The header of a hit by meaning."""
    hit = HitToken(bytes.fromhex(entry), number.to_bytes(32), tenant(key), int(time.time() - age_s))
    return write_hit(hit, KeyRing((ALICE, BOB, OPERATOR)))


async def test_verdicts_on_semantic_hits_are_published_and_count_once() -> None:
    async with http_client(app_of()) as http:
        entry = (await ask(http, ALICE, "plain"))["x-penstock-cache-entry"]
        for number in range(20):
            verdict = "wrong" if number == 0 else "right"
            body = {"entry": entry, "question": question_of(entry, number), "verdict": verdict}
            assert (await http.post(FEEDBACK, json=body, headers=headers(ALICE))).status_code == 200
            body["question"] = question_of(entry, number, age_s=1)  # the same question, asked again
            again = await http.post(FEEDBACK, json=body, headers=headers(ALICE))
            assert (again.status_code, again.json()["error"]["code"]) == (400, "already_judged")
        page = (await http.get("/metrics")).text
    assert 'penstock_cache_verdicts_total{endpoint="chat",model="small",verdict="right"} 19.0' in page
    assert 'penstock_cache_false_hit_rate{model="small",value="mean"} 0.05' in page
    assert 'penstock_cache_false_hit_rate{model="small",value="high"} 0.2' in page


async def test_only_who_was_served_may_judge() -> None:
    async with http_client(app_of()) as http:
        entry, other = [(await ask(http, ALICE, text))["x-penstock-cache-entry"] for text in ("one", "two")]
        good = question_of(entry, 1)
        for key, question in [
            (ALICE, "ab" * 32),  # invented
            (ALICE, good[:40] + "AAAA" + good[44:]),
            (ALICE, question_of(other, 1)),  # of another entry
            (ALICE, question_of(entry, 1, BOB)),
            (ALICE, question_of(entry, 1, age_s=8 * 86400)),
            (BOB, good),
        ]:
            body = {"entry": entry, "question": question, "verdict": "wrong"}
            refused = await http.post(FEEDBACK, json=body, headers=headers(key))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "question")
        body = {"entry": entry, "question": good, "verdict": "right"}
        assert (await http.post(FEEDBACK, json=body, headers=headers(ALICE))).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"entry": "zz", "verdict": "right"}, "x-penstock-cache-entry"),
        ({"entry": "00", "question": "zz", "verdict": "right"}, "x-penstock-cache-question"),
        ({"entry": "00", "verdict": "good"}, "verdict"),
        ({"verdict": "right"}, "entry"),
    ],
)
async def test_feedback_that_names_nothing(body: dict[str, Any], words: str) -> None:
    async with http_client(app_of()) as http:
        response = await http.post(FEEDBACK, json=body, headers=headers(ALICE))
    assert response.status_code == 400 and words in response.json()["error"]["message"]


async def test_several_workers_need_redis() -> None:
    async with http_client(app_of(workers=2)) as http:
        response = await http.post(URL, json={"tag": "a"}, headers=headers(ALICE))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "cache_not_shared")
