"""Exchanges and models for tests of the pipeline, without any HTTP."""

from __future__ import annotations

import json
from typing import Any

from cache.memory_store import MemoryStore
from cache.semantic_cache import SemanticCache
from gateway.endpoints.specs import SPECS
from gateway.exchange.exchange import Asked, Exchange, Routed
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.exchange.prompt_embedding import no_meaning
from gateway.providers.fake import FakeProvider
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.sampling import Sampler
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.deadlines import Deadlines, TimeLimits
from policies.routing import Choice

ENDPOINTS = {spec.name: spec for spec in SPECS}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "auto", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
    "embeddings": {"model": "m", "input": "hi"},
}
REQUESTED = Choice("")
METRICS = Metrics(["m"])
TELEMETRY = Telemetry(OFF, METRICS)


def exchange_of(endpoint: str = "chat", authorization: str = "") -> Exchange:
    return exchange_with(BODIES[endpoint], endpoint, authorization=authorization)


def exchange_with(
    body: dict[str, Any],
    endpoint: str = "chat",
    *,
    authorization: str = "",
    headers: dict[str, str] | None = None,
) -> Exchange:
    async def read_body() -> bytes:
        return json.dumps(body).encode()

    def read_header(name: str) -> str:
        return (headers or {}).get(name, "")

    deadlines = Deadlines(60)
    deadlines.close()
    telemetry = TELEMETRY.begin(endpoint, "POST", "", [])
    asked = Asked(
        request_id="id",
        endpoint=ENDPOINTS[endpoint],
        telemetry=telemetry,
        read_body=read_body,
        deadlines=deadlines,
        authorization=authorization,
        read_header=read_header,
    )
    return Exchange(asked)


def routed_to(
    model: ServedModel | None, choice: Choice = REQUESTED, *, reason: str = "", conversation: bytes = b""
) -> Routed:
    """What choose_model would have decided."""
    return Routed(choice=choice, reason=reason, model=model, conversation=conversation)


def models(provider: FakeProvider | None = None) -> ModelTable:
    model = ServedModel("m", "engine", provider or FakeProvider(), TimeLimits(None, None, 60))
    return ModelTable([model], {"auto": "m"})


def response_cache() -> ResponseCache:
    answers = SemanticCache(MemoryStore(1 << 20, 1 << 20), None)
    return ResponseCache(answers, no_meaning, Sampler(no_meaning, METRICS.cache_judged))
