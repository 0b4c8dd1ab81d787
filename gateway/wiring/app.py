"""build_app: the one place where the parts of a gateway worker are connected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.routing import Route, Router

from backend.server.engine_client import EngineClient
from gateway.adapters.loader import AdapterLoader
from gateway.admin.access import AdminAccess
from gateway.admin.adapters import AdaptersEndpoint
from gateway.admin.cache import CacheAccess, FeedbackEndpoint, InvalidationEndpoint
from gateway.admin.feedback import DecisionFeedbackEndpoint
from gateway.admin.health import LIVE_PATHS, READY_PATHS, HealthEndpoint
from gateway.admin.openapi import OpenApiEndpoint
from gateway.admin.policies import PoliciesEndpoint
from gateway.admin.usage import UsageEndpoint
from gateway.auth import KeyRing, key_ring
from gateway.endpoints.spec import EndpointParts
from gateway.exchange.model_table import ModelTable
from gateway.openai.models import ModelsEndpoint
from gateway.openai.tokenize import TokenizeEndpoint
from gateway.pipeline.pipeline import Pipeline, PipelineParts
from gateway.processes.status import Statuses
from gateway.providers.base import Provider
from gateway.response_cache.response_cache import ResponseCache
from gateway.routing.decision_log import DecisionLog
from gateway.settings import Settings, SettingsError
from gateway.telemetry.request import Telemetry
from gateway.web.asgi_endpoint import Resource, RouteBuilder
from gateway.web.cors import cors_middleware
from gateway.wiring.console import console_routes, data_routes, request_routes
from gateway.wiring.model_builder import ModelBuilder
from gateway.wiring.policy_routes import policy_routes
from gateway.wiring.urls import (
    batch_routes,
    model_routes,
    moderation_routes,
    object_routes,
    passthrough_routes,
)
from gateway.wiring.worker_parts import WorkerParts, build_parts
from policies.cors import ANY_ORIGIN
from policies.document import Policies
from router.releases import stable_releases

POLICY_HEADER = "x-penstock-policy"


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
    parts = build_parts(settings, policies.metric_names(), statuses=statuses)
    resources = Resources((parts,), parts.background_work)
    version = build_version(settings, policies, parts, providers, resources)
    parts.metrics.set_engines(version.engines)
    parts.use_app(version.router)
    parts.use_policies(policies)
    return version.router


@dataclass(frozen=True, slots=True)
class Resources:
    """What an application opens with itself, `first` before and `last` after what its models need."""

    first: Sequence[Resource] = ()
    last: Sequence[Resource] = ()


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
    resources: Resources = Resources(),
) -> BuiltVersion:
    """What serves one version of the policies. Raises CheckpointError or SettingsError."""
    parts.metrics.series.add_tenants(policies.tenants)
    served = ModelBuilder(settings, policies, dict(providers or {}), parts)
    targets = {name: target for name, route in policies.routes.items() if (target := route.usual_target)}
    models = ModelTable(map(served.build, policies.models), targets, stable_releases(policies.models))
    telemetry = Telemetry(parts.tracing, parts.metrics)
    endpoints = RouteBuilder(telemetry, {POLICY_HEADER: policies.version})
    cache = served.response_cache()
    log = (
        None
        if parts.decisions is None
        else DecisionLog(parts.decisions, models, policies, parts.routing.ledger)
    )
    guards = served.guards()
    optional = PipelineParts(telemetry, log, served.embed(), parts.routing, guards, receivers=parts.receivers)
    optional = replace(optional, recent=parts.recent if policies.console else None)
    keys = key_ring(settings, None if parts.keys is None else parts.keys.live)
    pipeline = Pipeline(keys, models, cache, policies, optional)
    shared = EndpointParts(
        *(keys, pipeline, parts.object_store(settings, policies.responses), parts.background),
        max_body_bytes=settings.max_body_bytes,
        total_timeout_s=settings.timeouts.total_s,
        drops_hosted=policies.requests.hosted_tools == "drop",
    )
    routes = model_routes(endpoints, shared, policies.passthrough)
    routes += object_routes(endpoints, shared)
    operators = AdminAccess(keys, policies.admin)
    routes += _other_routes(endpoints, operators, shared, policies, models, parts)
    reaches_all = settings.workers == 1 or policies.cache.redis is not None
    access = CacheAccess(keys, policies.cache.operators, shared.max_body_bytes, reaches_all=reaches_all)
    routes += _cache_routes(endpoints, access, cache, models, parts)
    routes += batch_routes(endpoints, shared, parts.batches, policies.batches)
    routes += moderation_routes(endpoints, shared, policies, guards)
    routes += console_routes(endpoints, policies)
    routes += policy_routes(endpoints, operators, settings, policies, keys, parts, served.embed())
    routes += request_routes(endpoints, operators, policies, parts)
    routes += data_routes(
        endpoints, operators, shared, policies, parts, models, served.engines, cache.answers
    )
    routes += passthrough_routes(endpoints, shared, policies, models, served.forwarder)
    described = OpenApiEndpoint(keys, routes, policies.version)
    routes.append(endpoints.route("GET", "/openapi.json", "models", described.show))
    opened = [*resources.first, *served.resources, pipeline.signals, *resources.last]
    _check_origins(keys, policies)
    router = endpoints.router(routes, opened, cors_middleware(policies.cors.origins))
    return BuiltVersion(router, served.engines)


def _check_origins(keys: KeyRing, policies: Policies) -> None:
    """Raise SettingsError where every web page could use a gateway that asks for no key."""
    if ANY_ORIGIN in policies.cors.origins and keys.is_open:
        raise SettingsError(
            "cors.origins has '*' while no API key is configured, so any web page could use this gateway: "
            "name the origins, or set API keys"
        )


def _other_routes(
    endpoints: RouteBuilder,
    operators: AdminAccess,
    shared: EndpointParts,
    policies: Policies,
    models: ModelTable,
    parts: WorkerParts,
) -> list[Route]:
    keys, max_bytes = shared.keys, shared.max_body_bytes
    listing = ModelsEndpoint(keys, models)
    text = TokenizeEndpoint(keys, models, max_bytes)
    health = HealthEndpoint(models, parts.metrics, parts.policies, parts.store_faults)
    feedback = DecisionFeedbackEndpoint(keys, policies, parts.routing.ledger, parts.decisions, max_bytes)
    versions = PoliciesEndpoint(operators, parts.policies)
    usage = UsageEndpoint(keys, policies.admin, parts.usage)
    loading = {name: e.engine.adapter_loading for name, e in policies.models.items() if e.engine is not None}
    loader = AdapterLoader(models, loading, shared.total_timeout_s)
    adapters = AdaptersEndpoint(keys, loader, max_bytes)
    return [
        endpoints.route("POST", "/v1/load_lora_adapter", "other", adapters.load),
        endpoints.route("POST", "/v1/unload_lora_adapter", "other", adapters.unload),
        endpoints.methods("/admin/policies", "other", {"GET": versions.show, "POST": versions.reload}),
        endpoints.route("POST", "/admin/policies/rollback", "other", versions.rollback),
        endpoints.route("POST", "/v1/feedback", "other", feedback.judge),
        endpoints.route("GET", "/v1/usage", "other", usage.show),
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
    access: CacheAccess,
    cache: ResponseCache,
    models: ModelTable,
    parts: WorkerParts,
) -> list[Route]:
    invalidation = InvalidationEndpoint(access, cache.answers)
    counters, on_verdict = parts.routing.ledger.counters, parts.metrics.cache_judged
    feedback = FeedbackEndpoint(access, cache.answers, models, counters, on_verdict)
    return [
        endpoints.route("POST", "/v1/cache/invalidate", "other", invalidation.invalidate),
        endpoints.route("POST", "/v1/cache/feedback", "other", feedback.judge),
    ]
