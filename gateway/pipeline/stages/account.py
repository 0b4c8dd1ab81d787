"""account: token usage, cost and outcome of the exchange, for metrics, spans and limits."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.accounting.ledger import Ledger, cost_usd
from gateway.accounting.receipt import Charged
from gateway.answer import Embedded, Usage, total
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.model_table import ServedModel
from gateway.response_cache.use import HITS
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
        calls = [*exchange.rejected_usage]
        if exchange.answer is not None and _pays(exchange):
            calls.append((exchange.model, exchange.usage))
        exchange.charged = Charged(total([usage for _, usage in calls]), self._charge(exchange, calls))
        answer = None if isinstance(exchange.answer, Embedded) else exchange.answer
        exchange.asked.telemetry.call_ended(
            CallResult(
                usage=calls[-1][1] if calls and calls[-1][0].name == exchange.model.name else None,
                finish_reasons=answer.finish_reasons if answer is not None else (),
                response_id=answer.response_id if answer is not None else "",
                response_model=exchange.model.answered_as(answer),
                error_type="" if exchange.error is None else exchange.error.kind,
                error_status=0 if exchange.error is None else exchange.error.status,
                cost_usd=None if exchange.model.price is None else exchange.charged.usd,
            )
        )

    def _charge(self, exchange: Exchange, calls: Sequence[tuple[ServedModel, Usage]]) -> float:
        """Charge the tenant for what models have computed: also for rejected answers, not for cached ones.

        Returns the sum in USD.
        """
        tenant, sum_usd = exchange.principal.tenant, 0.0
        for model, usage in calls:
            usd = cost_usd(model.price, usage, is_batch=exchange.asked.is_batch)
            self._ledger.spend(tenant, model.parent or model.name, usd)
            sum_usd += usd
        return sum_usd


def _pays(exchange: Exchange) -> bool:
    """Whether the answer is paid by this exchange: one of those that share it, none for a stored one."""
    use = exchange.cache_use
    if use is None:
        return True
    return use.outcome not in HITS if use.share is None else use.share.must_pay()
