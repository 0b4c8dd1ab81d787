"""reserve: set aside what the answer may cost at most, where the tenant has a limit of tokens or USD."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator

from gateway.accounting.admission import Admission, Cost
from gateway.accounting.ledger import highest_usd
from gateway.answer import Usage
from gateway.errors import NotFound
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.model_table import ServedModel
from gateway.requests.prompts import num_choices
from gateway.requests.token_estimate import estimate_input
from gateway.requests.types import ChatRequest, CompletionRequest
from gateway.routing.memory import RoutingMemory
from gateway.routing.other_models import OtherModels, fallback_of
from gateway.telemetry.spans import STAGE_RESERVE
from policies.choose import BestOf

LONG_ANSWER = 4
"""Times the model's mean: what is set aside for an answer without `max_tokens`."""


class Reserve(Stage):
    """The stage, with the limits of one version of the policies."""

    def __init__(
        self,
        admission: Admission,
        others: OtherModels,
        memory: RoutingMemory,
        reserve_tokens: int | None = None,
    ) -> None:
        """`reserve_tokens`: of the policies, for answers without a limit."""
        self._reserve_tokens = reserve_tokens
        self._admission = admission
        self._others = others
        self._memory = memory

    async def enter(self, exchange: Exchange) -> None:
        """Raises RateLimited where the limits do not hold the highest cost beside what runs."""
        tenant = exchange.principal.tenant
        if exchange.answer is None and self._admission.limits_cost(tenant):
            model, highest = exchange.chosen_model.name, self._highest(exchange)
            with exchange.asked.telemetry.stage(STAGE_RESERVE):
                exchange.admitted = await self._admission.reserve(
                    exchange.admitted, tenant, model, highest, is_bounded=_is_bounded(exchange)
                )

    def _highest(self, exchange: Exchange) -> Cost:
        """The sum over all models that answer together or in turn; of those that replace one, the dearest."""
        first, *following = [self._call(exchange, model) for model in self._asked(exchange)]
        one_of = [first, *(self._call(exchange, model) for model in self._fallbacks(exchange))]
        return Cost(
            max(call.tokens for call in one_of) + sum(call.tokens for call in following),
            max(call.usd for call in one_of) + sum(call.usd for call in following),
        )

    def _asked(self, exchange: Exchange) -> Iterator[ServedModel]:
        yield exchange.chosen_model
        cascade = exchange.decided.cascade
        if cascade is None:
            return
        rules = cascade.rules
        if not isinstance(rules, BestOf):
            yield from self._resolved(exchange, cascade.following)
            return
        answers = Counter(rules.models) - Counter([exchange.chosen_model.name])
        yield from self._resolved(exchange, answers.elements())

    def _fallbacks(self, exchange: Exchange) -> Iterator[ServedModel]:
        fallback = fallback_of(exchange)
        names = {name for _, models in fallback.all() for name in models} if fallback is not None else ()
        yield from self._resolved(exchange, names)

    def _resolved(self, exchange: Exchange, names: Iterable[str]) -> Iterator[ServedModel]:
        for name in names:
            with contextlib.suppress(NotFound):  # an adapter that has been unloaded
                yield self._others.resolve(exchange, name)

    def _call(self, exchange: Exchange, model: ServedModel) -> Cost:
        request = exchange.request
        prompt, answer = estimate_input(request), 0
        if isinstance(request, ChatRequest | CompletionRequest):
            answer = request.token_limit or self._usual(model, prompt)
            answer *= num_choices(request)
        most = Usage(prompt, answer, machine_seconds=_machine_seconds(model, prompt, answer))
        return Cost(prompt + answer, highest_usd(model.price, most, is_batch=exchange.asked.is_batch))

    def _usual(self, model: ServedModel, prompt: int) -> int:
        usual = self._reserve_tokens or round(LONG_ANSWER * self._memory.answer_tokens.expected(model.name))
        context = model.capabilities.context_tokens
        return usual if context is None else max(1, min(usual, context - prompt))


def _is_bounded(exchange: Exchange) -> bool:
    """Whether the request says how long its answer may be."""
    request = exchange.request
    return not isinstance(request, ChatRequest) or request.token_limit is not None


def _machine_seconds(model: ServedModel, prompt: int, answer: int) -> float:
    """What an engine would work for it, all tokens computed and every step this request's alone."""
    if model.engine is None or model.price is None or not model.price.machine_second_usd:
        return 0.0
    stats = model.engine.client.stats
    return prompt * stats.prefill_s_per_token + answer * stats.decode_step_s
