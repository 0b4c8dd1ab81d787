"""admit: may this tenant ask for this model now, by the policies' tiers and limits?"""

from __future__ import annotations

from gateway.accounting.admission import Admission, Admitted
from gateway.exchange.exchange import Exchange, Stage
from gateway.requests.prompts import num_choices


class Admit(Stage):
    """The stage, under one version of the policies."""

    is_for_calls = True

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def enter(self, exchange: Exchange) -> None:
        """Raises Forbidden for a model that is not the tenant's, and RateLimited beyond a limit."""
        tenant, caller = exchange.principal.tenant, exchange.asked.caller
        num_answers = 0
        if caller is None or not caller.is_admitted:
            request = exchange.request
            num_answers = num_choices(request)
            exchange.response_headers |= self._admission.enter(tenant, request.model, num_answers)
        exchange.admitted = Admitted(num_answers, self._admission.counts_tokens(tenant))

    def settle(self, exchange: Exchange) -> None:
        """Count what was admitted as ended."""
        if num_answers := exchange.admitted.num_answers:
            self._admission.leave(exchange.principal.tenant, num_answers=num_answers)
