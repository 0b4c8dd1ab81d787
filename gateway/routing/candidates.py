"""Carries out `choose`: gathers what is known about each candidate and asks the strategy."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from backend.server.quote import Quote
from gateway.accounting.ledger import cost_usd
from gateway.answer import Usage
from gateway.errors import NotFound, Unavailable
from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.exchange.prompt_embedding import Embed, no_meaning
from gateway.exchange.turns import user_turns
from gateway.requests.token_estimate import estimate_prompt
from gateway.requests.types import ChatRequest, GenerationRequest
from gateway.routing.memory import RoutingMemory
from gateway.routing.predicted_gain import predict_gain
from policies.choose import BestOf, Cascade, ChoiceCandidate, Choose
from policies.document import Policies
from router.estimate import Estimate, load_estimate
from router.strategies import Candidate, Decision, QualityPerCost, Strategy

UPSTREAM_CACHED_SHARE = 0.5
"""Share of the prompt taken to be in the cache of an upstream that answered the conversation's last turn."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A `choose` with what is loaded for it once."""

    place: str  # in the policies, as `routes.auto`
    section: Choose
    strategy: Strategy
    estimate: Estimate | None

    @property
    def needs_quotes(self) -> bool:
        section = self.section
        return (
            section.strategy == "fastest"
            or section.latency_weight > 0
            or section.cost_by == "machine_seconds"
        )


class Selected(msgspec.Struct, frozen=True):
    """What a `choose`, a cascade or a best of several says about a request."""

    models: Sequence[str]  # the one to ask, and those after it or beside it
    why: str = ""  # for the request's reason
    gain: float | None = None  # where it has been predicted
    decision: Decision | None = None
    candidates: Sequence[Candidate] = ()


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
        self._languages = policies.encoder_languages
        self._embed = embed
        self._memory = memory or RoutingMemory()
        self._draw = draw
        for _, action in policies.actions():
            if action.cascade is not None and action.cascade.estimate is not None:
                load_estimate(action.cascade.estimate)
        self._compiled = {
            place: self._compile(place, action.choose)
            for place, action in policies.actions()
            if action.choose is not None
        }

    def _compile(self, place: str, section: Choose) -> _Compiled:
        estimate = None if section.estimate is None else load_estimate(section.estimate)
        return _Compiled(place, section, self._memory.strategy(place, section), estimate)

    async def choose(self, exchange: Exchange, place: str) -> Selected:
        """The model for a request by the `choose` of a place in the policies.

        Raises NotFound or Unavailable when no candidate can answer it.
        """
        compiled = self._compiled[place]
        section = compiled.section
        usable = _usable(exchange, self._served(section), section.candidates)
        if compiled.estimate is None:
            gain = None
        else:
            found = await predict_gain(exchange, compiled.estimate, self._embed, self._languages)
            if section.default in usable and found.familiarity < section.min_familiarity:
                reason = f"familiarity {found.familiarity:.2f} is below {section.min_familiarity:g}"
                values = {"familiarity": found.familiarity}
                return _selected(Decision(section.default, "default", reason, values))
            gain = found.gain
        candidates = await self._candidates(exchange, compiled, usable)
        if section.budget_usd_per_day is not None and isinstance(compiled.strategy, QualityPerCost):
            ledger = self._memory.ledger
            left = section.budget_usd_per_day - ledger.models_usd({model.name for model in usable.values()})
            compiled.strategy.usd_target = ledger.pace(compiled.place, left)
        return _selected(compiled.strategy.choose(candidates, gain, self._draw()), gain, candidates)

    async def cascade(self, exchange: Exchange, section: Cascade) -> Selected:
        """The models to ask in order: those that are ready, or only the last one where the gain is high."""
        ready = [name for name in section.models if self._is_ready(name)] or section.models[-1:]
        is_one = isinstance(exchange.request, GenerationRequest) and exchange.request.num_choices == 1
        if not is_one:  # the choices could not be replaced together
            return Selected(ready[-1:], "cascade: several choices")
        if section.estimate is None or len(ready) == 1:
            return Selected(ready)
        estimate = load_estimate(section.estimate)
        found = await predict_gain(exchange, estimate, self._embed, self._languages)
        why = f"cascade: gain {found.gain:.2f}, kept {found.stays:.2f}"
        least = max(section.min_kept, self._cost_ratio(exchange, ready, estimate))
        if found.stays <= least:
            why += f" of {least:.2f}"
        is_skipped = found.gain >= section.skip_above or found.stays <= least
        return Selected(ready[-1:] if is_skipped else ready, why, found.gain)

    def _cost_ratio(self, exchange: Exchange, names: Sequence[str], estimate: Estimate) -> float:
        """The first model's expected price in the last one's: what a cascade must save; 0.0: no prices."""
        tokens, known = estimate_prompt(exchange.request), estimate.answer_tokens
        means = known or [self._memory.answer_tokens.expected(name) for name in (names[0], names[-1])]
        usd = [
            cost_usd(self._models.resolve(name).price, Usage(tokens, round(answer)))
            for name, answer in zip((names[0], names[-1]), means, strict=True)
        ]
        return usd[0] / usd[1] if usd[1] > 0 else 0.0

    def best_of(self, exchange: Exchange, section: BestOf) -> Selected:
        """The models to ask at once, each as often as the rules say: those that are ready."""
        ready = {name: count for name, count in section.models.items() if self._is_ready(name)}
        names = [name for name, count in (ready or section.models).items() for _ in range(count)]
        if not isinstance(exchange.request, ChatRequest) or exchange.request.num_choices != 1:
            return Selected(names[:1], "best of: several choices, or no chat")
        return Selected(names)

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
        section, memory = compiled.section, self._memory
        tokens = estimate_prompt(exchange.request)
        previous = memory.conversations.previous_model(exchange)
        needs_quotes = compiled.needs_quotes or len(user_turns(exchange.request)) > 1
        quotes = {n: await _quote(exchange, m) if needs_quotes else None for n, m in usable.items()}
        costs = {name: _cost(section, name, model, quotes[name]) for name, model in usable.items()}
        dearest = max(costs.values()) or 1.0
        found = []
        for name, model in usable.items():
            quote, rules = quotes[name], section.candidates[name]
            expected = Usage(tokens, round(memory.answer_tokens.expected(model.name)))
            good, bad = (
                memory.ledger.judged(compiled.place, name) if section.strategy == "bandit" else (0.0, 0.0)
            )
            found.append(
                Candidate(
                    name,
                    rules.quality,
                    costs[name] / dearest,
                    memory.latencies.expected(model.name) if quote is None else quote.ttft_s,
                    cached_share=_cached_share(quote, is_previous=name == previous),
                    usd=cost_usd(model.price, expected),
                    good=good,
                    bad=bad,
                )
            )
        return found


def _selected(
    decision: Decision, gain: float | None = None, candidates: Sequence[Candidate] = ()
) -> Selected:
    why = f"{decision.strategy}: {decision.reason}"
    return Selected([decision.model], why, gain, decision, candidates)


async def _quote(exchange: Exchange, model: ServedModel) -> Quote | None:
    """What its engine predicts for the prompt; None for an upstream, and before the engine has measured."""
    if model.engine is None or not isinstance(exchange.request, ChatRequest):
        return None
    return await model.engine.quote(exchange.request, exchange.principal.tenant_salt)


def _cost(section: Choose, name: str, model: ServedModel, quote: Quote | None) -> float:
    own, price = section.candidates[name].cost, model.price
    if own is not None:
        return own
    if section.cost_by == "machine_seconds":
        return 0.0 if quote is None else quote.cost_s
    return 0.0 if price is None else price.input_and_output_usd


def _cached_share(quote: Quote | None, *, is_previous: bool) -> float:
    """The cached share of the prompt; upstreams do not tell, but may cache what they have just answered."""
    if quote is None:
        return UPSTREAM_CACHED_SHARE if is_previous else 0.0
    return quote.cached_tokens / max(1, quote.prompt_tokens)


def _usable(
    exchange: Exchange, served: Mapping[str, ServedModel], rules: Mapping[str, ChoiceCandidate]
) -> dict[str, ServedModel]:
    """Candidates that can answer the request; those that are ready, if any is."""
    request = exchange.request
    wants_tools = isinstance(request, ChatRequest) and bool(request.tools)
    wants_reasoning = getattr(request, "reasoning_effort", None) not in (None, "none")
    num_tokens = estimate_prompt(exchange.request)
    able = {
        name: model
        for name, model in served.items()
        if rules[name].can_answer(
            model.capabilities, num_tokens, wants_tools=wants_tools, wants_reasoning=wants_reasoning
        )
    }
    if not able:
        raise Unavailable(
            f"None of the models {', '.join(rules)} can answer this request: it has about {num_tokens} "
            f"tokens{', tools' if wants_tools else ''}{', reasoning' if wants_reasoning else ''}."
        )
    return {name: model for name, model in able.items() if model.state().ready} or able
