"""screen_answer: the model's guardrails on the answer as it streams; masked values come back."""

from __future__ import annotations

from dataclasses import replace

from gateway.answer import Generated, Relayed
from gateway.exchange.exchange import Exchange, Stage
from gateway.providers.upstream.generated import in_deltas
from gateway.requests.prompts import num_choices
from gateway.requests.types import GenerationRequest
from gateway.screening.answer import ScreenedDeltas
from guardrails.screen.answer_checks import checks_answers


class ScreenAnswer(Stage):
    """The stage."""

    async def enter(self, exchange: Exchange) -> None:
        """Wrap `exchange.answer` where the model has guardrails on answers."""
        answer, screening = exchange.answer, exchange.screening
        if screening is None or screening.is_blocked or not isinstance(answer, Generated | Relayed):
            return
        if checks_answers(screening) and isinstance(exchange.request, GenerationRequest):
            found = in_deltas(answer)
            num, on_output = num_choices(exchange.request), exchange.asked.deadlines.record_output
            deltas = ScreenedDeltas(found.deltas, screening, num, on_output)
            exchange.answer = replace(found, deltas=deltas)
