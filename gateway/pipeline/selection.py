"""Carries out `choose`: gathers what is known about each candidate and asks the strategy."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.errors import NotFound, Unavailable
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.facts import estimate_tokens
from gateway.pipeline.gain import predict_gain
from gateway.pipeline.meaning import Embed, no_meaning
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.pipeline.routing_memory import RoutingMemory
from gateway.pipeline.turns import user_turns
from gateway.requests.types import ChatRequest, EmbeddingRequest
from policies.choose import Cascade, ChoiceCandidate, Choose
from policies.document import Policies
from router.estimate import Estimate, load_estimate
from router.strategies import (
    Candidate,
    Cheapest,
    Decision,
    Fastest,
    QualityPerCost,
    Strategy,
)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A `choose` with what is loaded for it once."""

    section: Choose
    strategy: Strategy
    estimate: Estimate | None

    @property
    def needs_quotes(self) -> bool:
        return self.strategy.name == "fastest" or self.section.latency_weight > 0


class Selection:
    """Every `choose` of one version of the policies."""

    def __init__(
        self,
        models: ModelTable,
        policies: Policies,
        embed: Embed = no_meaning,
        memory: RoutingMemory | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Raises WeightsError for an estimate that cannot be loaded."""
        self._models = models
        self._embed = embed
        self._memory = memory or RoutingMemory()
        self._draw = draw
        sections = [action.choose for _, action in policies.actions() if action.choose is not None]
        for _, action in policies.actions():
            if action.cascade is not None and action.cascade.estimate is not None:
                load_estimate(action.cascade.estimate)
        self._compiled = {id(section): _compile(section) for section in sections}

    async def choose(self, exchange: Exchange, section: Choose) -> Decision:
        """The decision for a request. Raises NotFound or Unavailable when no candidate can answer it."""
        compiled = self._compiled[id(section)]
        usable = _usable(exchange, self._served(section), section.candidates)
        if compiled.estimate is None:
            gain = None
        else:
            found = await predict_gain(exchange, compiled.estimate, self._embed)
            if section.default in usable and found.familiarity < section.min_familiarity:
                reason = f"familiarity {found.familiarity:.2f} is below {section.min_familiarity:g}"
                return Decision(section.default, "default", reason, {"familiarity": found.familiarity})
            gain = found.gain
        candidates = await self._candidates(exchange, compiled, usable)
        return compiled.strategy.choose(candidates, gain, self._draw())

    async def cascade(self, exchange: Exchange, section: Cascade) -> list[str]:
        """The models to ask in order: those that are ready, or only the last one where the gain is high."""
        ready = [name for name in section.models if self._is_ready(name)] or section.models[-1:]
        is_one = getattr(exchange.request, "num_choices", 1) == 1 and not isinstance(
            exchange.request, EmbeddingRequest
        )
        if not is_one:  # the choices could not be replaced together
            exchange.reason += ", cascade: several choices"
            return ready[-1:]
        if section.estimate is not None and len(ready) > 1:
            gain = (await predict_gain(exchange, load_estimate(section.estimate), self._embed)).gain
            exchange.reason += f", cascade: gain {gain:.2f}"
            if gain >= section.skip_above:
                return ready[-1:]
        return ready

    def _is_ready(self, name: str) -> bool:
        try:
            return self._models.resolve(name).state().ready
        except NotFound:  # an adapter that has been unloaded
            return False

    def _served(self, section: Choose) -> dict[str, ServedModel]:
        found: dict[str, ServedModel] = {}
        for name in section.candidates:
            with contextlib.suppress(NotFound):  # an adapter that has been unloaded
                found[name] = self._models.resolve(name)
        return found

    async def _candidates(
        self, exchange: Exchange, compiled: _Compiled, usable: Mapping[str, ServedModel]
    ) -> list[Candidate]:
        rules = compiled.section.candidates
        costs = {name: _cost(rules[name], model) for name, model in usable.items()}
        dearest = max(costs.values()) or 1.0
        is_long = len(user_turns(exchange.request)) > 1
        found = []
        for name, model in usable.items():
            latency_s, cached_share = self._memory.latencies.expected_s(model.name), 0.0
            if compiled.needs_quotes or is_long:
                latency_s, cached_share = await _quote(exchange, model, latency_s)
            found.append(Candidate(name, rules[name].quality, costs[name] / dearest, latency_s, cached_share))
        return found


async def _quote(exchange: Exchange, model: ServedModel, measured_s: float) -> tuple[float, float]:
    """Expected seconds to the first token, and the share of the prompt in the prefix cache."""
    if model.engine is None or not isinstance(exchange.request, ChatRequest):
        return measured_s, 0.0
    quote = await model.engine.quote(exchange.request, exchange.principal.tenant_salt)
    if quote is None:
        return measured_s, 0.0
    return quote.ttft_s, quote.cached_tokens / max(1, quote.prompt_tokens)


def _usable(
    exchange: Exchange, served: Mapping[str, ServedModel], rules: Mapping[str, ChoiceCandidate]
) -> dict[str, ServedModel]:
    """Candidates that can answer the request; those that are ready, if any is."""
    request = exchange.request
    wants_tools = isinstance(request, ChatRequest) and bool(request.tools)
    wants_reasoning = getattr(request, "reasoning_effort", None) not in (None, "none")
    num_tokens = estimate_tokens(exchange)
    able = {
        name: model
        for name, model in served.items()
        if num_tokens <= (rules[name].max_tokens or num_tokens)
        and (rules[name].can_call_tools or not wants_tools)
        and (rules[name].can_reason or not wants_reasoning)
    }
    if not able:
        raise Unavailable(
            f"None of the models {', '.join(rules)} can answer this request: it has about {num_tokens} "
            f"tokens{', tools' if wants_tools else ''}{', reasoning' if wants_reasoning else ''}."
        )
    return {name: model for name, model in able.items() if model.state().ready} or able


def _cost(rules: ChoiceCandidate, model: ServedModel) -> float:
    if rules.cost is not None:
        return rules.cost
    price = model.price
    return 0.0 if price is None else price.input_usd_per_million_tokens + price.output_usd_per_million_tokens


def _compile(section: Choose) -> _Compiled:
    strategies: dict[str, Strategy] = {
        "quality_per_cost": QualityPerCost(section.cost_weight, section.latency_weight, section.strong_share),
        "cheapest": Cheapest(section.min_quality),
        "fastest": Fastest(),
    }
    estimate = None if section.estimate is None else load_estimate(section.estimate)
    return _Compiled(section, strategies[section.strategy], estimate)
