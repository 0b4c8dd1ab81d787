"""call_model: pass the request to the model's provider. Its answer may still be generating on return."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from backend.errors import EngineError
from gateway.answer import Answer, Generated
from gateway.errors import ApiError, NotFound, TimedOut, Unavailable, to_api_error
from gateway.exchange.exchange import Escalation, Exchange
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.pipeline.stages.choose_model import MODEL_HEADER, REASON_HEADER
from gateway.routing.best_of import ask_for_best
from gateway.routing.cascade import ask_with_doubt, predicting
from gateway.routing.fallback import begin, error_class
from gateway.routing.request_changes import adapted
from gateway.routing.truncation import truncating
from gateway.telemetry import spans
from gateway.telemetry.request import CallResult
from policies.choose import BestOf
from policies.guardrails import GuardrailProfile
from policies.routes import ErrorClass, Fallback


class CallModel:
    """The stage; `models` are those that it may fall back to."""

    def __init__(
        self,
        models: ModelTable,
        max_attempts: int,
        profiles: Mapping[str, GuardrailProfile] = MappingProxyType({}),
    ) -> None:
        """`profiles`: the guardrails that rules name."""
        self._models = models
        self._profiles = profiles
        self._max_attempts = max_attempts

    async def __call__(self, exchange: Exchange) -> None:
        """Fill `exchange.answer` unless look_up has. Raises what the last provider raises."""
        if exchange.answer is not None:
            return
        if exchange.cascade is not None and await self._descend(exchange, exchange.cascade):
            return
        model, fallback = exchange.model, _fallback(exchange)
        assert model is not None
        if fallback is None:
            exchange.answer = await _call(exchange, model)
            return
        while exchange.answer is None:
            try:
                exchange.answer = await self._attempt(exchange, model, fallback)
            except (ApiError, EngineError) as failure:
                error = to_api_error(failure)
                following = self._next(exchange, fallback, error_class(error))
                if following is None:
                    raise
                exchange.telemetry.call_ended(
                    CallResult(response_model=model.name, error_type=type(error).__name__)
                )
                _record_failure(exchange, model, following, error)
                model = exchange.model = following

    def replaces_refusing(self, exchange: Exchange, error: ApiError) -> bool:
        """Whether another model is the exchange's now, as the guardrails of the first refused the request."""
        model, fallback = exchange.model, _fallback(exchange)
        if model is None or fallback is None or error_class(error) != "refused":
            return False
        following = self._next(exchange, fallback, "refused")
        if following is not None:
            _record_failure(exchange, model, following, error)
            exchange.model = following
        return following is not None

    async def _descend(self, exchange: Exchange, cascade: Escalation) -> bool:
        """Whether a model before the last one has answered; else the last one is the exchange's model now."""
        rules = cascade.rules
        if isinstance(rules, BestOf):
            assert exchange.model is not None
            others = [self._resolved(exchange, name) for name in cascade.following]
            exchange.answer = await ask_for_best(exchange, [exchange.model, *others], rules)
            _show_model(exchange)
            return True
        for following in cascade.following:
            assert exchange.model is not None
            exchange.answer = await ask_with_doubt(exchange, exchange.model, rules)
            if exchange.answer is not None:
                _show_model(exchange)
                return True
            exchange.model = self._resolved(exchange, following)
            predicting(exchange, exchange.model)
            _show_model(exchange)  # also for its error
        return False

    def _resolved(self, exchange: Exchange, name: str) -> ServedModel:
        """The model as the rules change it. Raises NotFound for an adapter that has been unloaded."""
        assert exchange.choice is not None
        found = self._models.resolve(name)
        return adapted(found, exchange.choice.changes, self._profiles)

    async def _attempt(self, exchange: Exchange, model: ServedModel, fallback: Fallback) -> Answer:
        """Call the model and wait for the first byte: until then another one can take over."""
        if not model.state().ready and self._next(exchange, fallback, "unavailable") is not None:
            raise Unavailable(f"The model {model.name!r} is not ready.")
        limits = replace(model.limits, first_token_s=None)
        limit_s = model.limits.first_token_s
        waits_for_all = limit_s is None and self._next(exchange, fallback, "timeout") is not None
        if waits_for_all:  # as for an upstream's answer that is no stream
            limit_s, limits = limits.total_s, replace(limits, total_s=2 * limits.total_s)
        try:
            async with asyncio.timeout(limit_s):
                answer = await _call(exchange, replace(model, limits=limits))
                if isinstance(answer, Generated):
                    await begin(answer)
        except TimeoutError:
            raise TimedOut(f"The model gave no first token within {limit_s:g} s. Try again.") from None
        if waits_for_all:
            exchange.deadlines.start_model_call(replace(model.limits, first_token_s=None))
        return answer

    def _next(self, exchange: Exchange, fallback: Fallback, kind: ErrorClass | None) -> ServedModel | None:
        """The model to try after an error of this class; None when there is none."""
        failed = exchange.failed_models
        if kind is None or exchange.model is None or len(failed) + 1 >= self._max_attempts:
            return None
        assert exchange.choice is not None
        for name in fallback.after(kind):
            with contextlib.suppress(NotFound):  # an adapter that has been unloaded
                found = self._resolved(exchange, name)
                if found.name not in (*failed, exchange.model.name):
                    return found
        return None


def _fallback(exchange: Exchange) -> Fallback | None:
    """The fallback of the last rule that has one."""
    changes = () if exchange.choice is None else exchange.choice.changes
    return next((change.fallback for change in reversed(changes) if change.fallback is not None), None)


def _record_failure(exchange: Exchange, model: ServedModel, following: ServedModel, error: ApiError) -> None:
    exchange.failed_models.append(model.name)
    exchange.reason += f", {model.name}: {error_class(error)}"
    exchange.telemetry.annotate({spans.REASON: exchange.reason})
    if MODEL_HEADER in exchange.response_headers:
        exchange.response_headers[MODEL_HEADER] = following.name
        exchange.response_headers[REASON_HEADER] = exchange.reason


def _show_model(exchange: Exchange) -> None:
    """The model that answers and why, where the policies show it."""
    exchange.telemetry.annotate({spans.REASON: exchange.reason})
    if MODEL_HEADER in exchange.response_headers and exchange.model is not None:
        exchange.response_headers[MODEL_HEADER] = exchange.model.name
        exchange.response_headers[REASON_HEADER] = exchange.reason


async def _call(exchange: Exchange, model: ServedModel) -> Answer:
    exchange.start_call(model)
    if exchange.truncates():
        return await truncating(exchange, lambda: exchange.ask(model, exchange.telemetry))
    return await exchange.ask(model, exchange.telemetry)
