"""Models that take a request over: those of a rule's `fallback`, with the rules' changes."""

from __future__ import annotations

import contextlib

from gateway.errors import ApiError, NotFound
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.routing.exposed import show_model
from gateway.routing.fallback import error_class
from gateway.routing.request_changes import adapted
from policies.routes import ErrorClass, Fallback


class OtherModels:
    """Under one version of the policies."""

    def __init__(self, models: ModelTable, max_attempts: int) -> None:
        self._models = models
        self._max_attempts = max_attempts

    def resolve(self, exchange: Exchange, name: str) -> ServedModel:
        """The model as the rules change it. Raises NotFound for an adapter that has been unloaded."""
        found = self._models.resolve(name)
        return adapted(found, exchange.decided.choice.changes)

    def after(self, exchange: Exchange, fallback: Fallback, kind: ErrorClass | None) -> ServedModel | None:
        """The model to try after an error of this class; None when there is none."""
        failed = exchange.attempts.failed_models
        if kind is None or exchange.model is None or len(failed) + 1 >= self._max_attempts:
            return None
        others: list[ServedModel] = []
        for name in fallback.after(kind):
            with contextlib.suppress(NotFound):  # an adapter that has been unloaded
                found = self.resolve(exchange, name)
                if found.name not in (*failed, exchange.model.name):
                    others.append(found)
        return next((found for found in others if not found.is_out), others[0] if others else None)

    def try_replace_refusing(self, exchange: Exchange, error: ApiError) -> bool:
        """Whether another model is the exchange's now, as the guardrails of the first refused the request."""
        fallback = fallback_of(exchange)
        if fallback is None or error_class(error) != "refused":
            return False
        following = self.after(exchange, fallback, "refused")
        if following is not None:
            take_over(exchange, following, error)
        return following is not None


def fallback_of(exchange: Exchange) -> Fallback | None:
    """The one of the last rule that has a fallback."""
    changes = reversed(exchange.decided.choice.changes)
    return next((change.fallback for change in changes if change.fallback is not None), None)


def take_over(exchange: Exchange, following: ServedModel, error: ApiError) -> None:
    """Make another model the exchange's, after this error of the one that it had."""
    failed = exchange.chosen_model.name
    exchange.attempts.failed_models.append(failed)
    exchange.reason += f", {failed}: {error_class(error)}"
    exchange.model = following
    show_model(exchange)
