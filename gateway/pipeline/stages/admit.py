"""admit: may this tenant ask for this model now, by the policies' tiers and limits?"""

from __future__ import annotations

from gateway.accounting.admission import NOT_LIMITED, Admission
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.user import user_hash
from gateway.requests.prompts import num_choices


class Admit(Stage):
    """The stage, under one version of the policies."""

    is_for_calls = True

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def enter(self, exchange: Exchange) -> None:
        """Raises Forbidden for a model that is not the tenant's, and RateLimited beyond a limit."""
        request, caller = exchange.request, exchange.asked.caller
        exchange.admitted = await self._admission.enter(
            exchange.principal,
            request.model,
            num_choices(request),
            user=user_hash(exchange),
            is_admitted=caller is not None and caller.is_admitted,
            span=exchange.asked.telemetry.stage,
        )
        if exchange.admitted.headers:
            exchange.response_headers |= exchange.admitted.headers

    def settle(self, exchange: Exchange) -> None:
        """Give back what was set aside, and count what account has charged."""
        self._admission.settle(exchange.admitted, exchange.charged)
        exchange.admitted = NOT_LIMITED
