"""Feedback over HTTP: counted once, for the caller's own decisions, and never for made-up ones."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway.providers.fake import FakeProvider
from gateway.settings import Settings
from gateway.wiring.app import build_version
from gateway.wiring.worker_parts import WorkerParts, build_parts
from policies.choose import ChoiceCandidate, Choose
from policies.document import EngineModel, ModelEntry, Policies
from policies.routes import Route
from tests.gateway.conftest import http_client

CHAT = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
ALICE, BOB = ({"authorization": f"Bearer {key}"} for key in ("sk-alice", "sk-bob"))


def app_of(tmp_path: object, data_dir: str = "") -> tuple[object, WorkerParts]:
    models = {name: ModelEntry(engine=EngineModel(checkpoint="/none")) for name in ("small", "large")}
    section = Choose(candidates=dict.fromkeys(models, ChoiceCandidate()), strategy="bandit")
    policies = Policies(models=models, routes={"auto": Route(choose=section)}, version="v1")
    settings = Settings(api_keys=("sk-alice", "sk-bob"), decision_log=f"{tmp_path}/log", data_dir=data_dir)
    parts = build_parts(settings, policies.names())
    return build_version(settings, policies, parts, dict.fromkeys(models, FakeProvider())).router, parts


async def decide(http: httpx.AsyncClient) -> str:
    response = await http.post("/v1/chat/completions", json=CHAT, headers=ALICE)
    assert response.status_code == 200
    return response.headers["x-penstock-decision"]


async def judge(
    http: httpx.AsyncClient, decision: str, score: float, headers: dict[str, str] = ALICE
) -> httpx.Response:
    body = {"decision": decision, "score": score}
    return await http.post("/v1/feedback", json=body, headers=headers)


async def test_feedback_counts_once_and_is_recorded(tmp_path: object) -> None:
    router, parts = app_of(tmp_path)
    async with http_client(router) as http:  # type: ignore[arg-type]
        decision = await decide(http)
        answer = await judge(http, decision, 0.25)
        model = answer.json()["model"]
        assert answer.json() == {"object": "feedback", "model": model, "score": 0.25}
        assert parts.routing.ledger.judged("routes.auto", model) == (0.25, 0.75)
        again = await judge(http, decision, 1.0)
        assert again.status_code == 400 and again.json()["error"]["param"] == "decision"
        assert parts.routing.ledger.judged("routes.auto", model) == (0.25, 0.75)
    await parts.close()
    with open(f"{tmp_path}/log") as file:
        assert f'"scores":{{"{model}":0.25}}' in file.read()


@pytest.mark.parametrize("change", [lambda text: text[:-4], lambda text: "AAAA" + text[4:], lambda text: "é"])
async def test_made_up_decisions_are_refused(tmp_path: object, change: object) -> None:
    router, parts = app_of(tmp_path)
    async with http_client(router) as http:  # type: ignore[arg-type]
        decision = change(await decide(http))  # type: ignore[operator]
        assert (await judge(http, decision, 1.0)).status_code == 400
    await parts.close()


async def test_only_the_caller_may_judge_and_scores_are_bounded(tmp_path: object) -> None:
    router, parts = app_of(tmp_path)
    async with http_client(router) as http:  # type: ignore[arg-type]
        decision = await decide(http)
        assert (await judge(http, decision, 1.0, BOB)).status_code == 400
        assert (await judge(http, decision, 1.5)).status_code == 400
        assert (await judge(http, decision, 1.0, {})).status_code == 401
        assert (await judge(http, decision, 1.0)).status_code == 200
    await parts.close()


async def test_feedback_counts_once_for_all_workers_and_versions(tmp_path: object) -> None:
    first, parts = app_of(tmp_path, data_dir=str(tmp_path))
    second, others = app_of(tmp_path, data_dir=str(tmp_path))
    async with http_client(first) as one, http_client(second) as other:  # type: ignore[arg-type]
        decision = await decide(one)
        answers = await asyncio.gather(*(judge(each, decision, 1.0) for each in (one, other) * 4))
        assert sorted(answer.status_code for answer in answers) == [200, *[400] * 7]
    for each in (parts, others):
        await each.close()
