"""build_app: the one place where the parts of a gateway worker are built and connected."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.routing import Route, Router

from backend.errors import CheckpointError
from backend.server.encoder_client import EncoderClient
from backend.server.engine_client import EngineClient
from backend.tokenizer import Tokenizer
from cache import snapshot
from cache.memory_store import MemoryStore
from cache.semantic_cache import SemanticCache
from cache.settings import CacheSettings
from cache.verify import Verifier
from gateway.adapters.loader import AdapterLoader
from gateway.admin import FIXED_POLICIES, PoliciesEndpoint, PolicyControl
from gateway.auth import KeyRing
from gateway.checkpoints import checkpoint_folder
from gateway.health import LIVE_PATHS, READY_PATHS, HealthEndpoint
from gateway.openai.adapters import AdaptersEndpoint
from gateway.openai.cache import CacheAccess, FeedbackEndpoint, InvalidationEndpoint
from gateway.openai.models import ModelsEndpoint
from gateway.openai.responses.store import ResponseStore
from gateway.openai.tokenize import TokenizeEndpoint
from gateway.pipeline.decision_log import DecisionLog, LogFile
from gateway.pipeline.meaning import embed_with, no_meaning
from gateway.pipeline.models import ModelFailure, ModelState, ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline
from gateway.processes.status import ProcessStatus, Statuses
from gateway.providers.base import Provider
from gateway.providers.encoder import EncoderProvider
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.service import EngineService
from gateway.providers.upstream.anthropic.provider import AnthropicProvider
from gateway.providers.upstream.openai import OpenAIProvider
from gateway.requests.reasoning import default_effort_error
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.sampling import Sampler
from gateway.routes import model_routes, response_routes
from gateway.settings import Settings, SettingsError
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import Tracing, start_tracing
from gateway.web.asgi_endpoint import Resource, RouteBuilder
from gateway.web.deadlines import TimeLimits
from policies import cache as policy_cache
from policies.document import EncoderModel, EngineModel, ModelEntry, Policies, UpstreamModel
from policies.responses import ResponsesSection

if TYPE_CHECKING:
    from cache.redis_store import RedisStore

POLICY_HEADER = "x-penstock-policy"
SPARE_METRIC_MODELS = 32
"""Models that reloads of the policies can add to the metrics; those of more count as "-"."""


@dataclass(frozen=True, slots=True)
class CacheStore:
    """Stored answers, and the file that keeps them over a restart."""

    memory: MemoryStore
    path: Path | None

    @classmethod
    def open(cls, section: policy_cache.MemoryStore, worker: int) -> CacheStore:
        """With what the worker of this number saved before."""
        store = MemoryStore(section.max_bytes, int(section.max_bytes * section.max_tenant_share))
        path = Path(f"{section.snapshot_path}.{worker}") if section.snapshot_path else None
        if path is not None:
            snapshot.load(path, store, time.time())
        return cls(store, path)

    def save(self) -> None:
        """Write the file, if there is one."""
        if self.path is not None:
            snapshot.write(self.path, self.memory.rows())


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What all versions of the policies have in common in one worker."""

    tracing: Tracing
    metrics: Metrics
    statuses: Statuses  # of the engines and encoders, kept up to date by the caller
    policies: PolicyControl
    worker: int = 0  # its number
    stores: dict[str, CacheStore] = field(default_factory=dict)  # the latest, by its section of the policies
    decisions: LogFile | None = None
    responses: dict[str, ResponseStore] = field(default_factory=dict)  # by their section of the policies

    async def start(self) -> None:
        """Do nothing: each part starts when it is used."""

    async def close(self) -> None:
        """Close the stores, and export the remaining spans, with a timeout."""
        self._save_stores()
        for store in self.responses.values():
            await store.close()
        if self.decisions is not None:
            self.decisions.close()
        self.tracing.shutdown()

    def memory_store(self, section: policy_cache.MemoryStore) -> MemoryStore:
        """The store of cached answers with this section: that of the version before, if it had the same."""
        key = repr(section)
        if key not in self.stores:
            self._save_stores()
            self.stores.clear()
            self.stores[key] = CacheStore.open(section, self.worker)
        return self.stores[key].memory

    def _save_stores(self) -> None:
        for store in self.stores.values():
            store.save()

    def response_store(self, settings: Settings, section: ResponsesSection) -> ResponseStore:
        """The store of this section, the same for all versions that have it."""
        key = repr(section)
        if key not in self.responses:
            self.responses[key] = ResponseStore(settings.data_dir, section)
        return self.responses[key]


def build_parts(
    settings: Settings,
    metric_models: Sequence[str],
    *,
    statuses: Statuses | None = None,
    worker: int = 0,
    policies: PolicyControl = FIXED_POLICIES,
) -> WorkerParts:
    """`worker` is its number, `metric_models` the labels of metrics. Raises SettingsError, TelemetryError."""
    metrics = Metrics(metric_models, settings.counter_fds, worker, num_spare=SPARE_METRIC_MODELS)
    metrics.set_policies(lambda: policies.state)
    known = {} if statuses is None else statuses
    decisions = _open_log(settings.decision_log) if settings.decision_log else None
    tracing = start_tracing(settings.telemetry)
    return WorkerParts(tracing, metrics, known, policies, worker, decisions=decisions)


def _open_log(path: str) -> LogFile:
    try:
        return LogFile(path)
    except OSError as error:
        raise SettingsError(f"PENSTOCK_DECISION_LOG={path!r} cannot be written: {error.strerror}") from None


def build_app(
    settings: Settings,
    policies: Policies,
    providers: Mapping[str, Provider] | None = None,
    *,
    statuses: Statuses | None = None,
) -> Router:
    """The ASGI application with one version of the policies; call it inside the event loop.

    `providers` replace those of the policies, by model name. Raises CheckpointError, SettingsError or
    TelemetryError.
    """
    parts = build_parts(settings, policies.names(), statuses=statuses)
    version = build_version(settings, policies, parts, providers, [parts])
    parts.metrics.set_engines(version.engines)
    return version.router


@dataclass(frozen=True, slots=True)
class BuiltVersion:
    """The application of one version, and its connections to engines, whose statistics are published."""

    router: Router
    engines: Mapping[str, EngineClient]


def build_version(
    settings: Settings,
    policies: Policies,
    parts: WorkerParts,
    providers: Mapping[str, Provider] | None = None,
    resources: Sequence[Resource] = (),
) -> BuiltVersion:
    """What serves one version of the policies. Raises CheckpointError or SettingsError."""
    served = _ModelBuilder(settings, policies, dict(providers or {}), parts)
    targets = {name: target for name, route in policies.routes.items() if (target := route.usual_target)}
    models = ModelTable([served.build(name) for name in policies.models], targets)
    telemetry = Telemetry(parts.tracing, parts.metrics)
    endpoints = RouteBuilder(telemetry, {POLICY_HEADER: policies.version})
    cache = served.response_cache(models)
    log = None if parts.decisions is None else DecisionLog(parts.decisions, models, policies)
    pipeline = Pipeline(KeyRing(settings.api_keys), models, cache, policies, telemetry, log)
    responses = parts.response_store(settings, policies.responses)
    routes = model_routes(endpoints, settings, pipeline, responses)
    routes += response_routes(endpoints, settings, responses)
    routes += _other_routes(endpoints, settings, policies, models, parts)
    routes += _cache_routes(endpoints, settings, policies, cache, models, parts.metrics)
    return BuiltVersion(endpoints.router(routes, [*resources, *served.resources]), served.engines)


def _other_routes(
    endpoints: RouteBuilder, settings: Settings, policies: Policies, models: ModelTable, parts: WorkerParts
) -> list[Route]:
    keys = KeyRing(settings.api_keys)
    listing = ModelsEndpoint(keys, models)
    text = TokenizeEndpoint(keys, models, settings.max_body_bytes)
    health = HealthEndpoint(models, parts.metrics, parts.policies)
    versions = PoliciesEndpoint(keys, policies.admin, parts.policies)
    loading = {name: e.engine.adapter_loading for name, e in policies.models.items() if e.engine is not None}
    loader = AdapterLoader(models, loading, settings.timeouts.total_s)
    adapters = AdaptersEndpoint(keys, loader, settings.max_body_bytes)
    return [
        endpoints.route("POST", "/v1/load_lora_adapter", "other", adapters.load),
        endpoints.route("POST", "/v1/unload_lora_adapter", "other", adapters.unload),
        endpoints.methods("/admin/policies", "other", {"GET": versions.show, "POST": versions.reload}),
        endpoints.route("POST", "/admin/policies/rollback", "other", versions.rollback),
        endpoints.route("GET", "/v1/models", "models", listing.list),
        endpoints.route("GET", "/v1/models/{id:path}", "models", listing.show),
        endpoints.route("POST", "/tokenize", "tokenize", text.tokenize),
        endpoints.route("POST", "/detokenize", "detokenize", text.detokenize),
        *(endpoints.route("GET", path, "", health.live) for path in LIVE_PATHS),
        *(endpoints.route("GET", path, "", health.ready) for path in READY_PATHS),
        endpoints.route("GET", "/metrics", "", health.metrics),
    ]


def _cache_routes(
    endpoints: RouteBuilder,
    settings: Settings,
    policies: Policies,
    cache: ResponseCache,
    models: ModelTable,
    metrics: Metrics,
) -> list[Route]:
    access = CacheAccess(
        KeyRing(settings.api_keys),
        policies.cache.operators,
        settings.max_body_bytes,
        reaches_all=settings.workers == 1 or policies.cache.redis is not None,
    )
    invalidation = InvalidationEndpoint(access, cache.answers)
    feedback = FeedbackEndpoint(access, cache.answers, models, metrics.cache_judged)
    return [
        endpoints.route("POST", "/v1/cache/invalidate", "other", invalidation.invalidate),
        endpoints.route("POST", "/v1/cache/feedback", "other", feedback.judge),
    ]


class _ModelBuilder:
    """Builds each model's provider; `resources` collects what opens and closes with the worker."""

    def __init__(
        self,
        settings: Settings,
        policies: Policies,
        given: dict[str, Provider],
        parts: WorkerParts,
    ) -> None:
        self.resources: list[Resource] = []
        self.engines: dict[str, EngineClient] = {}
        self._settings = settings
        self._policies = policies
        self._given = given
        self._parts = parts
        timeouts = settings.timeouts
        self._encoders: dict[str, EncoderClient] = {}
        self._limits = TimeLimits(timeouts.first_token_s, timeouts.idle_s, timeouts.total_s)

    def build(self, name: str) -> ServedModel:
        """The model `name` of the policies."""
        entry = self._policies.models[name]
        adapters = frozenset(entry.engine.adapters if entry.engine is not None else ())
        settings = CacheSettings.of(entry.cache, self._policies.cache)
        return replace(
            self._served(name),
            price=entry.price,
            adapters=adapters,
            cache=None if entry.kind == "encoder" else settings,
            guardrails=self._policies.guardrails.profiles.get(
                entry.guardrails or self._policies.guardrails.default or ""
            ),
            policy_digest=_answer_digest(entry),
        )

    def response_cache(self, models: ModelTable) -> ResponseCache:
        """What the models share that have a cache."""
        rules = self._policies.cache
        encoder = self._encoders.get(rules.encoder or next(iter(self._encoders), ""))
        modes = {model.cache.mode for model in models.models.values() if model.cache is not None}
        modes |= {each.cache.mode or "none" for _, each in self._policies.actions() if each.cache is not None}
        store = self._parts.memory_store(rules.memory)
        shared = self._redis_store(store)
        has_meaning = encoder is not None and "semantic" in modes
        embed = embed_with(encoder) if encoder is not None and has_meaning else no_meaning
        answers = SemanticCache(store, Verifier.load() if has_meaning else None, shared=shared)
        return ResponseCache(answers, embed, Sampler(embed, self._parts.metrics.cache_judged))

    def _redis_store(self, memory: MemoryStore) -> RedisStore | None:
        rules = self._policies.cache.redis
        if rules is None:
            return None
        from cache.redis_store import RedisStore

        store = RedisStore(self._settings.redis_url, rules.prefix, memory, time.time)
        self.resources.append(store)
        return store

    def _served(self, name: str) -> ServedModel:
        entry = self._policies.models[name]
        given = self._given.get(name)
        if given is not None:
            engine = given if isinstance(given, EngineProvider) else None
            return ServedModel(name, entry.kind, given, self._limits, engine=engine)
        if entry.upstream is not None:
            return self._upstream(name, entry.upstream)
        if entry.engine is not None:
            return self._engine(name, entry.engine)
        assert entry.encoder is not None
        return self._encoder(name, entry.encoder)

    def _upstream(self, name: str, upstream: UpstreamModel) -> ServedModel:
        kind = AnthropicProvider if upstream.api == "anthropic" else OpenAIProvider
        provider = kind(
            name,
            upstream,
            self._settings.upstream_api_keys.get(name),
            self._settings.upstream_proxies.get(name, ""),
        )
        self.resources.append(provider)
        # The provider itself enforces the limits on connecting, the first token and idling.
        return ServedModel(
            name,
            "upstream",
            provider,
            TimeLimits(None, None, upstream.total_timeout_s),
            upstream_api=upstream.api,
        )

    def _engine(self, name: str, engine: EngineModel) -> ServedModel:
        client = EngineClient(self._settings.socket_paths[name])
        tokenizer = Tokenizer.from_checkpoint(checkpoint_folder(engine.checkpoint))
        error = default_effort_error(tokenizer.thinking, engine.reasoning)
        if error:
            raise CheckpointError(
                f"models.{name}.engine.reasoning.default_effort is {engine.reasoning.default_effort!r}, but "
                f"{engine.checkpoint!r} cannot do that. {error}"
            )
        wait_s = self._settings.timeouts.engine_start_s
        service = EngineService(
            client,
            tokenizer,
            wait_s,
            engine.reasoning,
            engine.tool_parser,
            engine.speculative,
            engine.unknown_fields,
        )
        provider = EngineProvider.of(name, service)
        self.resources.append(client)
        self.engines[name] = client
        state = self._state(name, client)
        served = ServedModel(name, "engine", provider, self._limits, state, engine=provider)
        return replace(served, num_waiting=lambda: client.stats.num_waiting)

    def _encoder(self, name: str, encoder: EncoderModel) -> ServedModel:
        client = EncoderClient(self._settings.socket_paths[name])
        self._encoders[name] = client
        self.resources.append(client)
        provider = EncoderProvider(name, client, encoder.unknown_fields)
        return ServedModel(name, "encoder", provider, self._limits, self._state(name, client))

    def _state(self, name: str, client: EngineClient | EncoderClient) -> Callable[[], ModelState]:
        def state() -> ModelState:
            if client.ready:
                return ModelState(ready=True, phase="ready", fraction=1.0)
            if client.hello is not None:
                return ModelState(ready=False, phase="hung")
            found = self._parts.statuses.get(name)
            if found is None:
                return ModelState(ready=False, phase="starting")
            return ModelState(False, found.phase, found.fraction, _failure(found))

        return state


def _answer_digest(entry: ModelEntry) -> str:
    """SHA-256 of what a model's policy says about its answers."""
    section = entry.engine or entry.upstream or entry.encoder
    return hashlib.sha256(msgspec.json.encode(section, order="deterministic")).hexdigest()


def _failure(status: ProcessStatus) -> ModelFailure | None:
    failure = status.failure
    if failure is None:
        return None
    retry_in_s = max(0.0, failure.retry_at_s - time.time())
    return ModelFailure(failure.cause, failure.count, round(retry_in_s, 1))
