"""Decisions about requests without any process: for explanations, probes and replays of recorded requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from cache.memory_store import MemoryStore
from cache.semantic_cache import SemanticCache
from gateway.accounting.counters import DAY_S, MONTH_S
from gateway.accounting.ledger import Ledger
from gateway.accounting.lines import PER_UNIT, Line
from gateway.auth import ANONYMOUS, KeyRing, Principal
from gateway.errors import ApiError
from gateway.exchange.endpoint import CHAT, Endpoint
from gateway.exchange.exchange import Asked, Exchange
from gateway.exchange.model_table import ModelState, ModelTable, ServedModel
from gateway.exchange.prompt_embedding import Embed, embed_here, no_meaning
from gateway.pipeline.pipeline import Pipeline, PipelineParts
from gateway.providers.encoder import no_text
from gateway.providers.engine.provider import only_text
from gateway.providers.fake import FakeProvider
from gateway.requests.types import ChatRequest, GenerationRequest
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.sampling import Sampler
from gateway.response_cache.settings import CacheSettings
from gateway.response_cache.use import bypass_reason
from gateway.routing.condition_values import utc_now
from gateway.routing.memory import RoutingMemory
from gateway.routing.probe_result import Decision
from gateway.screening.guards import Guards
from gateway.screening.threads import FairThreads
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.deadlines import Deadlines, TimeLimits
from guardrails.screen.guard import Vectors
from policies.document import Policies
from policies.endpoints import ENDPOINTS
from policies.probes import CacheUse, Live, Probe
from policies.routing import Choice
from router.releases import releases_of, stable_releases

_REFUSALS = {
    "content_filter",
    "refused_by_policy",
    "model_not_allowed",
    "budget_exceeded",
    "rate_limit_exceeded",
}
_LIMITS = TimeLimits(None, None, 60)
_TELEMETRY = Telemetry(OFF, Metrics(()))
_THREADS = FairThreads()
"""For long texts of all dry runs: each would leave threads of its own."""


class DryRun:
    """Takes the decisions of one version of the policies. Use it inside an event loop."""

    def __init__(self, policies: Policies, live: Live | None = None, embed: Embed | None = None) -> None:
        """`live`: the state of models; by default each is ready and has an empty queue."""
        # What is asked for is the first model's decision: none takes over what its guardrails refuse.
        routing = msgspec.structs.replace(policies.routing, max_attempts=1)
        self._policies = policies = msgspec.structs.replace(policies, routing=routing)
        self._live = live or Live()
        is_encoder_ready = self._live.ready.get(policies.encoder_name, True)
        self._embed = (embed or _embed(policies)) if is_encoder_ready else no_meaning
        self._guards = Guards(policies.guardrails, self._embed_all, asks_hooks=False, threads=_THREADS)
        targets = {name: target for name, route in policies.routes.items() if (target := route.usual_target)}
        self.models = ModelTable(map(self._model, policies.models), targets, stable_releases(policies.models))

    async def _embed_all(self, texts: Sequence[str]) -> Vectors | None:
        found = [await self._embed(text) for text in texts]
        known = [vector for vector in found if vector is not None]
        return np.stack(known) if len(known) == len(texts) else None

    def _model(self, name: str) -> ServedModel:
        entry = self._policies.models[name]
        rules = CacheSettings.of(entry.cache, self._policies.cache)
        state = ModelState(ready=self._live.ready.get(name, True))
        return ServedModel(
            name,
            entry.kind,
            FakeProvider(),
            _LIMITS,
            lambda: state,
            capabilities=entry.capabilities,
            price=entry.price,
            num_waiting=lambda: self._live.queue.get(name, 0),
            cache=None if entry.kind == "encoder" else rules,
            adapters=frozenset(entry.engine.adapters if entry.engine is not None else ()),
            guardrails=entry.guardrails or self._policies.guardrails.default or "",
        )

    async def decide(
        self,
        body: Mapping[str, Any],
        *,
        endpoint: Endpoint = CHAT,
        headers: Mapping[str, str] | None = None,
        principal: Principal = ANONYMOUS,
        clock: Callable[[], datetime] = utc_now,
    ) -> Decision:
        """The decision about a request. Raises the ApiError of a request that is not valid."""
        exchange = exchange_for(body, endpoint, headers, principal)
        memory = RoutingMemory(ledger=_ledger(self._live, principal.tenant))
        parts = PipelineParts(
            embed=self._embed, memory=memory, guards=self._guards, clock=clock, keeps_tried=True
        )
        pipeline = Pipeline(KeyRing([]), self.models, _no_cache(), self._policies, parts)
        try:
            await pipeline.decide(exchange)
        except ApiError as error:
            if error.code not in _REFUSALS:
                raise
            return Decision(
                Choice("") if exchange.routed is None else exchange.routed.choice,
                status=error.status,
                message=error.message,
                **_screened(exchange),
            )
        routed, model = exchange.decided, exchange.chosen_model
        _check_can_answer(exchange, model)
        choice, chosen, cascade = routed.choice, routed.decision, routed.cascade
        targets = () if choice.action is None else choice.action.targets()
        if chosen is not None and chosen.strategy != "fastest":  # which draws
            targets = [chosen.model]
        if choice.action is not None and choice.action.cascade is not None:
            targets = [model.name]
        return Decision(
            choice,
            tuple(name for target in targets or [model.name] for name in self._released(target)),
            cache=_cache_use(exchange, model),
            strategy=exchange.reason.removeprefix(f"{choice.reason}, ")
            if exchange.reason != choice.reason
            else "",
            following=() if cascade is None else cascade.following,
            values={} if chosen is None else chosen.values,
            **_screened(exchange),
        )

    def _released(self, target: str) -> list[str]:
        found = releases_of(self._policies.models).get(target)
        return [target] if found is None else found.names

    async def probe(self, probe: Probe) -> Decision:
        """The decision about a probe's request. Raises the ApiError of a request that is not valid."""
        given = None if probe.time is None else datetime.fromisoformat(probe.time)
        return await DryRun(self._policies, probe.live, self._embed).decide(
            probe.body(),
            headers={name.lower(): value for name, value in probe.headers.items()},
            principal=principal_of(probe.tenant),
            clock=utc_now if given is None else lambda: given,
        )


def _no_cache() -> ResponseCache:
    """No stage of a dry run looks into it."""
    answers = SemanticCache(MemoryStore(0, 0), None)
    return ResponseCache(answers, no_meaning, Sampler(no_meaning, lambda model, verdict: None))


def _ledger(live: Live, tenant: str) -> Ledger:
    ledger = Ledger()
    ledger.counters.add(f"usd:tenant:{tenant}", live.tenant_spent_usd, DAY_S)
    for field, window_s in (("usd_per_day", DAY_S), ("usd_per_month", MONTH_S)):
        line = Line(field, f"tenant:{tenant}", None, None)
        ledger.counters.add(line.name, live.tenant_spent_usd * PER_UNIT["usd"], window_s)
    for model, usd in live.spent_usd.items():
        ledger.counters.add(f"usd:model:{model}", usd, DAY_S)
    return ledger


def _embed(policies: Policies) -> Embed:
    return no_meaning if policies.encoder is None else embed_here(policies.encoder)


def principal_of(tenant: str) -> Principal:
    """The principal of a tenant's name, as the section `tenants` has it."""
    return Principal(tenant, tenant.removeprefix("key-") if tenant.startswith("key-") else "")


def exchange_for(
    body: Mapping[str, Any],
    endpoint: Endpoint = CHAT,
    headers: Mapping[str, str] | None = None,
    principal: Principal = ANONYMOUS,
) -> Exchange:
    """An exchange that has been authorized, without any HTTP request."""
    given = headers or {}

    async def read_body() -> bytes:
        return json.dumps(body).encode()

    deadlines = Deadlines(60)
    deadlines.close()
    asked = Asked(
        request_id="dry-run",
        endpoint=endpoint,
        telemetry=_TELEMETRY.begin("other", "POST", "", []),
        read_body=read_body,
        deadlines=deadlines,
        read_header=lambda name: given.get(name, ""),
    )
    return Exchange(asked, principal=principal)


def _screened(exchange: Exchange) -> dict[str, Any]:
    """What guardrails found and did."""
    if exchange.screening is None:
        return {}
    verdicts = exchange.screening.verdicts
    return {"guardrails": verdicts.kinds, "masked": verdicts.changed, "is_blocked": verdicts.has_blocked}


def _check_can_answer(exchange: Exchange, model: ServedModel) -> None:
    """Raise the InvalidRequest of a model that does something else, unless a guardrail has answered."""
    asks_text = isinstance(exchange.request, GenerationRequest)
    if exchange.answer is not None or model.kind != ("encoder" if asks_text else "engine"):
        return
    path = ENDPOINTS[exchange.asked.endpoint.name].paths[0]
    raise no_text(model.name, path) if asks_text else only_text(model.name, path)


def _cache_use(exchange: Exchange, model: ServedModel) -> CacheUse:
    rules = model.cache
    if exchange.answer is not None:  # the refusal of a guardrail, which no look-up precedes
        return "none"
    if rules is None or not isinstance(exchange.request, ChatRequest) or bypass_reason(exchange.body, rules):
        return "none"
    return rules.mode
