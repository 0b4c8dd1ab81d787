"""Guardrails on answers that an upstream relays."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.answer import Delta, Generated, Relayed, Usage
from gateway.exchange.exchange import Exchange
from gateway.pipeline.dry_run import exchange_for
from gateway.pipeline.stages.screen_answer import ScreenAnswer
from gateway.requests.types import CompletionRequest, EmbeddingRequest
from gateway.web.deadlines import Deadlines
from guardrails.screen.screening import Screening
from policies.guardrails import GuardrailProfile, PersonalDataRules, TopicRules
from tests.gateway.screening.profiles import body, guard_of


def exchange_of(request: CompletionRequest | EmbeddingRequest, answer: bytes) -> Exchange:
    exchange = exchange_for(body("x"))
    exchange.request, exchange.answer = request, Relayed(answer, Usage())
    exchange.screening = Screening(guard_of(GuardrailProfile(personal_data=PersonalDataRules())))
    return exchange


async def test_the_text_of_a_completion_is_screened() -> None:
    answer = b'{"choices": [{"index": 0, "text": "To a@b.org", "finish_reason": "stop"}]}'
    exchange = exchange_of(CompletionRequest(model="m", prompt="x"), answer)
    await ScreenAnswer().enter(exchange)
    assert isinstance(exchange.answer, Generated)
    assert "".join([each.text async for each in exchange.answer.deltas]) == "To [EMAIL]"


async def test_a_model_at_work_is_not_late_while_its_answer_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    async def source() -> AsyncIterator[Delta]:
        for piece in ("One ", "two ", "three."):
            seen.append(piece)
            yield Delta(0, piece)
        yield Delta(0, finish_reason="stop")

    topic = TopicRules(examples=["football"], answers=True)
    exchange = exchange_of(CompletionRequest(model="m", prompt="x"), b"")
    exchange.screening = Screening(guard_of(GuardrailProfile(topics={"sport": topic})))
    exchange.answer = Generated(source(), Usage())
    monkeypatch.setattr(Deadlines, "record_output", lambda self: seen.append("output"))
    await ScreenAnswer().enter(exchange)
    async for each in exchange.answer.deltas:
        seen.append(each.text)
    assert seen == ["One ", "output", "two ", "output", "three.", "output", "output", "One two three."]


async def test_vectors_are_relayed() -> None:
    exchange = exchange_of(EmbeddingRequest(model="m", input="x"), b'{"data": []}')
    given = exchange.answer
    await ScreenAnswer().enter(exchange)
    assert exchange.answer is given
