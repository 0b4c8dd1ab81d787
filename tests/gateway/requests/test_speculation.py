from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from backend.tokenizer import Tokenizer
from backend.types import DraftOptions, Request, StepOutput
from gateway.errors import InvalidRequest
from gateway.requests.speculation import predicted_text, read_draft
from gateway.requests.types import ChatRequest
from policies.document import Speculative
from tests.gateway.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"


def chat(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"model": "ours", "messages": [{"role": "user", "content": "Say it."}]} | more


def request(**more: Any) -> ChatRequest:  # noqa: ANN401
    return ChatRequest(**chat(**more))


def test_a_prediction_is_a_string_or_text_parts() -> None:
    assert predicted_text(request()) == ""
    assert predicted_text(request(prediction={"type": "content", "content": "a b"})) == "a b"
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert predicted_text(request(prediction={"type": "content", "content": parts})) == "a b"


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ({"type": "text", "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 3}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content[0]"),
        ({"type": "content", "content": "a", "contents": 1}, "prediction.contents"),
    ],
)
def test_other_predictions_are_refused_by_name(prediction: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        predicted_text(request(prediction=prediction))
    assert caught.value.param == param


def test_a_request_chooses_its_drafter_if_the_policy_allows_it() -> None:
    asked = request(speculative={"drafter": "ngram", "max_tokens": 3})
    assert read_draft(asked, Speculative()) == DraftOptions(drafter="ngram", max_tokens=3)
    assert read_draft(request(), Speculative(per_request=False)) is None
    with pytest.raises(InvalidRequest) as caught:
        read_draft(asked, Speculative(per_request=False))
    assert caught.value.param == "speculative"
    for wrong in ({"drafter": 3}, {"max_tokens": -1}, {"max_tokens": True}, {"k": 4}):
        with pytest.raises(InvalidRequest):
            read_draft(request(speculative=wrong), Speculative())


async def test_the_engine_gets_the_prediction_as_tokens_and_usage_says_what_it_gave(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    guess = "The water is cold."

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        tokens = request.prediction_token_ids
        yield StepOutput(request_id=request.request_id, token_ids=tokens[:1])
        yield StepOutput(
            request_id=request.request_id,
            token_ids=tokens[1:3],
            num_drafted=40,  # a grammar's as well
            num_accepted=20,
            num_predicted=len(tokens) - 1,
            num_predicted_accepted=1,
            finish_reason="stop",
        )

    engine.script = script
    body = chat(prediction={"type": "content", "content": guess}, speculative={"max_tokens": 9})
    answer = (await engine_http.post(CHAT, json=body)).json()
    sent = engine.requests[0]
    assert sent.prediction_token_ids == tokenizer.encode(guess) and sent.draft == DraftOptions(max_tokens=9)
    details = answer["usage"]["completion_tokens_details"]
    assert answer["usage"]["completion_tokens"] == 3
    assert details["accepted_prediction_tokens"] == 1
    assert details["rejected_prediction_tokens"] == len(sent.prediction_token_ids) - 2


async def test_a_huge_prediction_is_tokenised_only_up_to_the_answers_length(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    encode = Tokenizer._encode

    def measured(self: Tokenizer, text: str, *more: Any, **named: Any) -> list[int]:  # noqa: ANN401
        lengths.append(len(text))
        return encode(self, text, *more, **named)

    monkeypatch.setattr(Tokenizer, "_encode", measured)
    guess = "water and " * 400_000
    body = chat(prediction={"type": "content", "content": guess}, max_completion_tokens=40)
    assert (await engine_http.post(CHAT, json=body)).status_code == 200
    assert len(engine.requests[0].prediction_token_ids) == 40
    assert max(lengths) < len(guess) / 100


async def test_predicted_tokens_after_a_stop_string_are_not_accepted(
    engine_http: httpx.AsyncClient, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    tokens = tokenizer.encode("The water is cold.")

    async def script(request: Request) -> AsyncIterator[StepOutput]:
        yield StepOutput(request_id=request.request_id, token_ids=tokens[:1])
        yield StepOutput(
            request_id=request.request_id,
            token_ids=tokens[1:],
            num_predicted=len(tokens) - 1,
            num_predicted_accepted=len(tokens) - 1,
            finish_reason="length",
        )

    engine.script = script
    body = chat(prediction={"type": "content", "content": "The water is cold."}, stop="water")
    usage = (await engine_http.post(CHAT, json=body)).json()["usage"]
    details = usage["completion_tokens_details"]
    assert 1 <= details["accepted_prediction_tokens"] <= usage["completion_tokens"] < len(tokens) - 1
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == len(tokens) - 1, (
        "each draft is one or the other"
    )


async def test_completions_have_no_prediction(engine_http: httpx.AsyncClient) -> None:
    body = {"model": "ours", "prompt": "a", "prediction": {"type": "content", "content": "b"}}
    response = await engine_http.post("/v1/completions", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] == "prediction"
