"""call_model: pass the request to the model's provider. Its answer may still be generating on return."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from msgspec import structs

from backend.errors import EngineError
from gateway.answer import Answer, Generated
from gateway.errors import ApiError, TimedOut, Unavailable, to_api_error
from gateway.exchange.exchange import Escalation, Exchange, Stage
from gateway.exchange.model_table import ServedModel
from gateway.fleet.fleet import full
from gateway.routing.best_of import ask_for_best
from gateway.routing.cascade import ask_with_doubt, predicting
from gateway.routing.exposed import show_attempts, show_model
from gateway.routing.fallback import begin, error_class
from gateway.routing.other_models import OtherModels, fallback_of, take_over
from gateway.routing.truncation import truncating
from gateway.telemetry.request import CallResult
from policies.choose import BestOf
from policies.routes import Fallback


class CallModel(Stage):
    """The stage, with the models that may take a request over."""

    def __init__(self, others: OtherModels) -> None:
        self._others = others

    async def enter(self, exchange: Exchange) -> None:
        """Fill `exchange.answer` unless look_up has. Raises what the last provider raises."""
        if exchange.answer is not None:
            return
        try:
            cascade = exchange.decided.cascade
            if cascade is not None and await self._descend(exchange, cascade):
                return
            model, fallback = exchange.chosen_model, fallback_of(exchange)
            if fallback is None:
                exchange.answer = await _call(exchange, model)
            else:
                exchange.answer = await self._answer(exchange, model, fallback)
        finally:
            show_attempts(exchange)

    async def _answer(self, exchange: Exchange, model: ServedModel, fallback: Fallback) -> Answer:
        while True:
            try:
                return await self._attempt(exchange, model, fallback)
            except (ApiError, EngineError) as failure:
                error = to_api_error(failure)
                following = self._others.after(exchange, fallback, error_class(error))
                if following is None:
                    raise
                exchange.asked.telemetry.call_ended(
                    CallResult(error_type=error.kind, error_status=error.status)
                )
                take_over(exchange, following, error)
                model = following

    async def _descend(self, exchange: Exchange, cascade: Escalation) -> bool:
        """Whether a model before the last one has answered; else the last one is the exchange's model now."""
        rules = cascade.rules
        if isinstance(rules, BestOf):
            others = [self._others.resolve(exchange, name) for name in cascade.following]
            exchange.answer = await ask_for_best(exchange, [exchange.chosen_model, *others], rules)
            show_model(exchange)
            return True
        for following in cascade.following:
            exchange.answer = await ask_with_doubt(exchange, exchange.chosen_model, rules)
            if exchange.answer is not None:
                show_model(exchange)
                return True
            exchange.model = self._others.resolve(exchange, following)
            predicting(exchange, exchange.model)
            show_model(exchange)  # also for its error
        return False

    async def _attempt(self, exchange: Exchange, model: ServedModel, fallback: Fallback) -> Answer:
        """Call the model and wait for the first byte: until then another one can take over."""
        if not model.state().ready and self._others.after(exchange, fallback, "unavailable") is not None:
            raise Unavailable(f"The model {model.name!r} is not ready.")
        is_full = model.fleet is not None and model.fleet.is_full
        if is_full and self._others.after(exchange, fallback, "rate_limited") is not None:
            raise full()
        limits = structs.replace(model.limits, first_token_s=None)
        limit_s = model.limits.first_token_s
        waits_for_all = limit_s is None and self._others.after(exchange, fallback, "timeout") is not None
        if waits_for_all:  # as for an upstream's answer that is no stream
            limit_s, limits = limits.total_s, structs.replace(limits, total_s=2 * limits.total_s)
        try:
            async with asyncio.timeout(limit_s):
                answer = await _call(exchange, replace(model, limits=limits))
                if isinstance(answer, Generated):
                    await begin(answer)
        except TimeoutError:
            raise TimedOut(f"The model gave no first token within {limit_s:g} s. Try again.") from None
        if waits_for_all:
            exchange.asked.deadlines.start_model_call(structs.replace(model.limits, first_token_s=None))
        return answer


def _call(exchange: Exchange, model: ServedModel) -> Awaitable[Answer]:
    exchange.start_call(model)
    if exchange.asked.truncates():
        return truncating(exchange, lambda: exchange.ask(model, exchange.asked.telemetry))
    return exchange.ask(model, exchange.asked.telemetry)
