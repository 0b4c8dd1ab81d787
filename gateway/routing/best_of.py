"""Asks for several answers at once and keeps the one that scores best."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from backend.errors import EngineError
from gateway.answer import Delta, Generated, Relayed, close_answer
from gateway.errors import ApiError
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ServedModel
from gateway.providers.upstream.generated import in_deltas
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from policies.choose import BestOf


@dataclass(frozen=True, slots=True)
class _Tried:
    """A complete answer."""

    model: ServedModel
    answer: Generated
    deltas: list[Delta]

    @property
    def confidence(self) -> float:
        """The geometric mean of the tokens' probabilities; 0.0 where they are not known."""
        tokens = (token for delta in self.deltas for token in delta.tokens)
        found = [token.logprob for token in tokens if token.logprob is not None]
        return math.exp(sum(found) / len(found)) if found else 0.0

    @property
    def said(self) -> str:
        """What is compared: the words, and the calls of tools."""
        calls = [call.name + call.arguments for delta in self.deltas for call in delta.tool_calls]
        text = "".join(delta.text for delta in self.deltas)
        return " ".join([*text.casefold().split(), *calls]).rstrip(".! ")


async def ask_for_best(exchange: Exchange, models: Sequence[ServedModel], rules: BestOf) -> Generated:
    """The best of one answer of each of `models`, which may repeat; the exchange's model is its author.

    Raises what the first of them raises when all fail.
    """
    exchange.start_call(models[0])
    tasks = [asyncio.create_task(_ask(exchange, model, number)) for number, model in enumerate(models)]
    try:
        found = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for task in tasks:
            task.cancel()
    tried = [each for each in found if isinstance(each, _Tried)]
    for failure in found:
        if isinstance(failure, BaseException) and not (tried and isinstance(failure, ApiError | EngineError)):
            raise failure
    votes = Counter(each.said for each in tried)
    by_vote = rules.scorer == "vote"
    best = max(tried, key=lambda each: (votes[each.said] if by_vote else 0, each.confidence))
    exchange.rejected_usage = [each for each in exchange.rejected_usage if each[1] is not best.answer.usage]
    exchange.model = best.model
    exchange.reason += f", best of {len(tried)}: confidence {best.confidence:.2f}" + (
        f", {votes[best.said]} agree" if by_vote else ""
    )
    shows_logprobs = exchange.request.num_logprobs is not None
    best.answer.deltas = _replayed(best.deltas, keeps_tokens=shows_logprobs)
    return best.answer


async def _ask(exchange: Exchange, model: ServedModel, number: int) -> _Tried:
    request = exchange.request
    assert isinstance(request, ChatRequest)
    fields: dict[str, Any] = {} if model.upstream_api != "openai" else {"logprobs": True}
    if request.seed is not None:  # else all would say the same
        fields["seed"] = request.seed + number
    body = {**exchange.body, **fields}
    call = structs.replace(exchange.model_call(request), request=typed(body, ChatRequest), body=body)
    telemetry = exchange.asked.telemetry
    answer = await exchange.call(model, call, lambda provider, call: provider.chat(call), telemetry)
    exchange.rejected_usage.append((model, answer.usage))  # until it turns out to be the best
    assert isinstance(answer, Generated | Relayed)
    neutral = in_deltas(answer)
    try:
        return _Tried(model, neutral, [delta async for delta in neutral.deltas])
    finally:
        await close_answer(neutral)


async def _replayed(deltas: Sequence[Delta], *, keeps_tokens: bool) -> AsyncIterator[Delta]:
    """Without the tokens' records unless the client asked for them."""
    for delta in deltas:
        if not keeps_tokens:
            delta.tokens = []
        yield delta
