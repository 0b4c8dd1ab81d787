"""screen_answer: the model's guardrails on the answer as it streams; masked values come back."""

from __future__ import annotations

from dataclasses import replace

from gateway.answer import Generated, Relayed
from gateway.pipeline.exchange import Exchange
from gateway.providers.upstream.generated import generated


async def screen_answer(exchange: Exchange) -> None:
    """Wrap `exchange.answer` where the model has guardrails on answers."""
    answer, screening = exchange.answer, exchange.screening
    if screening is None or not isinstance(answer, Generated | Relayed):
        return
    found = generated(answer) if isinstance(answer, Relayed) else answer
    deltas = screening.answer_deltas(found.deltas)
    if deltas is not None:
        exchange.answer = replace(found, deltas=deltas)
