"""account: token usage, cost and outcome of the exchange, for metrics, spans and limits."""

from __future__ import annotations

from gateway.accounting.ledger import Ledger, cost_usd
from gateway.answer import Embedded, Usage
from gateway.exchange.exchange import Exchange, Stage
from gateway.telemetry.request import CallResult


class Account(Stage):
    """The stage, with the ledger of all versions of the policies."""

    is_for_calls = True

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def settle(self, exchange: Exchange) -> None:
        """Record the end of a model call. Exchanges without one are recorded by the ASGI endpoint alone."""
        if exchange.model is None:
            return
        _charge(exchange, self._ledger)
        answer = None if isinstance(exchange.answer, Embedded) else exchange.answer
        exchange.asked.telemetry.call_ended(
            CallResult(
                usage=_measured(exchange),
                finish_reasons=answer.finish_reasons if answer is not None else (),
                response_id=answer.response_id if answer is not None else "",
                response_model=exchange.model.name,
                error_type="" if exchange.error is None else type(exchange.error).__name__,
            )
        )


def _charge(exchange: Exchange, ledger: Ledger) -> None:
    """The tenant pays for what models computed: also for rejected answers, not for cached ones."""
    calls = [*exchange.rejected_usage]
    is_hit = exchange.cache_use is not None and exchange.cache_use.outcome in ("exact", "semantic", "shared")
    if exchange.model is not None and not is_hit:
        calls.append((exchange.model, exchange.usage))
    tenant = exchange.principal.tenant
    for model, usage in calls:
        if exchange.counts_tokens:
            ledger.use(tenant, tokens=usage.prompt_tokens + usage.completion_tokens)
        ledger.spend(tenant, model.parent or model.name, cost_usd(model.price, usage))


def _measured(exchange: Exchange) -> Usage | None:
    """The usage of the last call; None where it is unknown, or another exchange's, which counts it."""
    if exchange.answer is None:
        name = exchange.chosen_model.name
        return next((usage for model, usage in exchange.rejected_usage[-1:] if model.name == name), None)
    is_follower = exchange.cache_use is not None and exchange.cache_use.outcome == "shared"
    return None if is_follower else exchange.usage
