"""/v1/moderations with the shipped classifiers and the real encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openai.types import ModerationCreateResponse
from starlette.routing import Router

from gateway.openai.moderations import CATEGORIES
from gateway.settings import Settings
from gateway.wiring.app import build_app
from guardrails.checks import classifier
from policies.document import EncoderModel, ModelEntry, Policies
from policies.passthrough import PassthroughRule
from policies.tenants import Limits, Tier
from tests.backend.encoder.checkpoints import write_encoder
from tests.gateway.conftest import http_client
from tests.guardrails.encoder import vectors_of

PATH = "/v1/moderations"
INSULT = "You are a worthless piece of garbage and everybody hates you."


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Router:
    async def vectors(texts: Sequence[str]) -> Any:  # noqa: ANN401
        return vectors_of(texts)

    monkeypatch.setattr("gateway.wiring.model_builder.embed_texts_with", lambda client: vectors)
    encoder = ModelEntry(encoder=EncoderModel(checkpoint="builtin:all-minilm-l6-v2"))
    return build_app(Settings(socket_paths={"e": "/none"}), Policies(models={"e": encoder}))


async def judged(app: Router, given: object) -> ModerationCreateResponse:
    async with http_client(app) as http:
        response = await http.post(PATH, json={"input": given, "model": "omni-moderation-latest"})
    assert response.status_code == 200, response.text
    return ModerationCreateResponse.model_validate_json(response.content, strict=True)


async def test_texts_are_judged_one_by_one(app: Router) -> None:
    kind, insult, empty = (await judged(app, ["What a lovely day!", INSULT, ""])).results
    assert (kind.flagged, insult.flagged, empty.flagged) == (False, True, False)
    assert insult.categories.harassment and not kind.categories.harassment
    assert insult.category_scores.harassment > kind.category_scores.harassment
    assert insult.category_applied_input_types.sexual_minors == []


async def test_parts_are_one_text(app: Router) -> None:
    parts = [{"type": "text", "text": "Hello."}, {"type": "text", "text": INSULT}]
    (result,) = (await judged(app, parts)).results
    assert result.flagged


def test_every_category_of_ours_is_shown() -> None:
    assert set(filter(None, CATEGORIES.values())) == set(classifier.CATEGORIES)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "0 texts"),
        (["x"] * 129, "129 texts"),
        ("x" * 100_001, "100001 characters"),
        ([{"type": "image_url", "image_url": {"url": "https://x/y.png"}}], "is an image"),
        ([{"type": "text"}], "with a 'text'"),
        (["a", 1], "type 'text'"),
        (7, "input"),
    ],
)
async def test_what_cannot_be_judged_is_refused_by_name(app: Router, given: object, words: str) -> None:
    async with http_client(app) as http:
        response = await http.post(PATH, json={"input": given})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error") and words in error[
        "message"
    ]


async def test_without_an_encoder_it_is_unavailable() -> None:
    async with http_client(build_app(Settings(), Policies())) as http:
        response: httpx.Response = await http.post(PATH, json={"input": "hi"})
    assert response.status_code == 503 and "encoder" in response.json()["error"]["message"]


async def test_a_passthrough_takes_the_path() -> None:
    upstream = {"upstream": {"base_url": "http://127.0.0.1:9", "model": "x"}}
    entry = msgspec.convert(upstream, ModelEntry)
    policies = Policies(models={"gpt": entry}, passthrough={PATH: PassthroughRule(model="gpt")})
    async with http_client(build_app(Settings(), policies)) as http:
        response = await http.post(PATH, json={"input": "hi"})
    assert response.json()["error"]["code"] == "upstream_unreachable"


async def test_vectors_of_another_encoder_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def vectors(texts: Sequence[str]) -> Any:  # noqa: ANN401
        return vectors_of(texts)

    monkeypatch.setattr("gateway.wiring.model_builder.embed_texts_with", lambda client: vectors)
    encoder = ModelEntry(encoder=EncoderModel(checkpoint=str(write_encoder(tmp_path / "e", "bert"))))
    app = build_app(Settings(socket_paths={"e": "/none"}), Policies(models={"e": encoder}))
    async with http_client(app) as http:
        response = await http.post(PATH, json={"input": INSULT})
    assert response.status_code == 503 and "was trained with another one" in response.text


async def test_the_total_is_bounded(app: Router) -> None:
    async with http_client(app) as http:
        response = await http.post(PATH, json={"input": ["a" * 100_000] * 11})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "input")
    assert "1100000 characters in all: send at most 1000000" in error["message"]


async def test_a_tenants_limits_hold() -> None:
    limits = Limits(requests_per_minute=1)
    app = build_app(Settings(), Policies(tiers={"default": Tier(limits=limits)}))
    async with http_client(app) as http:
        answers = [await http.post(PATH, json={"input": "x"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [503, 429]  # no encoder, then no more requests
    assert answers[1].json()["error"]["code"] == "rate_limit_exceeded"
