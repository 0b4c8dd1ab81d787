"""Guardrails on answers that an upstream relays."""

from __future__ import annotations

from gateway.answer import Generated, Relayed, Usage
from gateway.pipeline.dry_run import exchange_for
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.stages.screen_answer import screen_answer
from gateway.requests.types import CompletionRequest, EmbeddingRequest
from gateway.screening.screening import Screening
from policies.guardrails import GuardrailProfile, PersonalDataRules
from tests.gateway.screening.profiles import body, guard_of


def exchange_of(request: CompletionRequest | EmbeddingRequest, answer: bytes) -> Exchange:
    exchange = exchange_for(body("x"))
    exchange.request, exchange.answer = request, Relayed(answer, Usage())
    exchange.screening = Screening(guard_of(GuardrailProfile(personal_data=PersonalDataRules())))
    return exchange


async def test_the_text_of_a_completion_is_screened() -> None:
    answer = b'{"choices": [{"index": 0, "text": "To a@b.org", "finish_reason": "stop"}]}'
    exchange = exchange_of(CompletionRequest(model="m", prompt="x"), answer)
    await screen_answer(exchange)
    assert isinstance(exchange.answer, Generated)
    assert "".join([each.text async for each in exchange.answer.deltas]) == "To [EMAIL]"


async def test_vectors_are_relayed() -> None:
    exchange = exchange_of(EmbeddingRequest(model="m", input="x"), b'{"data": []}')
    given = exchange.answer
    await screen_answer(exchange)
    assert exchange.answer is given
