"""From the policies' models to what serves them: providers, clients and the cache."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from backend.errors import CheckpointError
from backend.server.encoder_client import EncoderClient
from backend.server.endpoints import Endpoint, UnixEndpoint
from backend.server.engine_client import EngineClient
from backend.server.quote import PageIndex
from backend.tokenizer import Tokenizer
from cache.memory_store import MemoryStore
from cache.semantic_cache import SemanticCache
from cache.verify import Verifier
from gateway.checkpoints import checkpoint_folder
from gateway.encoder_fit import EncoderFit
from gateway.exchange.model_table import ModelFailure, ModelState, ServedModel
from gateway.exchange.prompt_embedding import Embed, embed_texts_with, embed_with, no_meaning
from gateway.fleet.fleet import Fleet
from gateway.fleet.target import Target
from gateway.processes.status import ASLEEP, ProcessStatus
from gateway.providers.base import Provider
from gateway.providers.encoder import EncoderProvider
from gateway.providers.engine.dns_replicas import DnsReplicas
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.engine.remote import Door, Expected, listed_endpoints
from gateway.providers.engine.replicas import Replicas
from gateway.providers.engine.service import EngineService
from gateway.providers.upstream.apis import Api, open_api
from gateway.providers.upstream.forwarding import Forwarder
from gateway.requests.reasoning import default_effort_error
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.sampling import Sampler
from gateway.response_cache.settings import CacheSettings
from gateway.screening.guards import Guards
from gateway.settings import Settings
from gateway.telemetry.spans import place_of
from gateway.web.asgi_endpoint import Resource
from gateway.web.deadlines import TimeLimits
from gateway.wiring.worker_parts import WorkerParts
from guardrails.screen.guard import EmbedTexts, Guard, Vectors, no_vectors
from policies.document import EncoderModel, EngineModel, ModelEntry, Policies
from policies.engine_addresses import parse_dns
from policies.guardrails import GuardrailProfile
from policies.names import replica_names
from policies.upstream import UpstreamModel, UpstreamTarget

if TYPE_CHECKING:
    from cache.redis_store import RedisStore

PLACEMENT = ("replicas", "drain_handover_s", "addresses", "dns", "connection")
"""Keys of an engine's policy that say where it runs, not what it answers."""


class ModelBuilder:
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
        self._forwarders: dict[str, Forwarder] = {}
        self._encoders: dict[str, EncoderClient] = {}
        self._embed: Embed | None = None
        self._fit = EncoderFit(policies)
        self._limits = TimeLimits(timeouts.first_token_s, timeouts.idle_s, timeouts.total_s)

    def build(self, name: str) -> ServedModel:
        """The model `name` of the policies."""
        entry = self._policies.models[name]
        adapters = frozenset(entry.engine.adapters if entry.engine is not None else ())
        settings = CacheSettings.of(entry.cache, self._policies.cache)
        return replace(
            self._served(name),
            price=entry.price,
            capabilities=entry.capabilities,
            adapters=adapters,
            cache=None if entry.kind == "encoder" else settings,
            guardrails=entry.guardrails or self._policies.guardrails.default or "",
            policy_digest=self._answer_digest(entry),
        )

    def forwarder(self, name: str) -> Forwarder:
        """What passes requests to the upstream `name` as they are. Raises SettingsError."""
        if name not in self._forwarders:
            upstream = self._policies.models[name].section
            if not isinstance(upstream, UpstreamModel):
                raise ValueError(
                    f"the model {name!r} is no upstream: no request can be passed to it as it is"
                )
            suffix, place = next(iter(upstream.places().items()))  # others would not know what one keeps
            key = self._settings.upstream_api_keys.get(name + suffix)
            proxy = self._settings.upstream_proxies.get(name + suffix, "")
            self._forwarders[name] = Forwarder(name, place, key, proxy)
            self.resources.append(self._forwarders[name])
        return self._forwarders[name]

    def response_cache(self) -> ResponseCache:
        """What the models share that have a cache."""
        store = self._parts.memory_store(self._policies.cache.memory)
        shared = self._redis_store(store)
        has_meaning = bool(self._encoders) and self._policies.compares_questions
        embed = self.embed() if has_meaning else no_meaning
        verifier = Verifier.load(self._fit.verifier) if has_meaning else None
        answers = SemanticCache(store, verifier, shared=shared)
        # How near two wordings of one answer are is known of the encoder that ships only.
        compare = embed if has_meaning and self._fit.is_builtin else no_meaning
        heads = self._fit.readable_heads if has_meaning else None
        sampler = Sampler(compare, self._parts.metrics.cache_judged)
        cache = ResponseCache(answers, embed, sampler, self._policies.encoder_languages, heads)
        self.resources += [cache] if has_meaning else []
        return cache

    def guards(self) -> Guards:
        """The guardrails of these policies; their hooks' connections close with the version."""
        name = self._policies.encoder_name
        embed = embed_texts_with(self._encoders[name]) if name in self._encoders else no_vectors
        threads, keys = self._parts.screening_threads, self._settings.upstream_api_keys
        guards = Guards(self._policies.guardrails, embed, keys, threads=threads)
        guards.moderation = Guard(
            GuardrailProfile(),
            self._where_readable(embed),
            {},
            guards.moderation.classifier,
            threads=threads,
        )
        self.resources += [guards, *guards.hooks]
        return guards

    def _where_readable(self, embed: EmbedTexts) -> EmbedTexts:
        """Gives vectors only if the classifier can read them: no profile asks for moderation."""

        async def embed_texts(texts: Sequence[str]) -> Vectors | None:
            is_readable = await asyncio.to_thread(self._fit.reads, self._fit.classifier)
            return await embed(texts) if is_readable else None

        return embed_texts

    def embed(self) -> Embed:
        """What gives a text's vector, the same for all; of nothing where the policies have no encoder."""
        if self._embed is None:
            name = self._policies.encoder_name
            self._embed = embed_with(self._encoders[name]) if name in self._encoders else no_meaning
        return self._embed

    def _redis_store(self, memory: MemoryStore) -> RedisStore | None:
        rules = self._policies.cache.redis
        if rules is None:
            return None
        from cache.redis_store import RedisStore

        on_fault = partial(self._parts.metrics.fault, "redis_cache")
        store = RedisStore(self._settings.redis_url, rules.prefix, memory, time.time, on_fault)
        self.resources.append(store)
        return store

    def _served(self, name: str) -> ServedModel:
        entry = self._policies.models[name]
        given = self._given.get(name)
        if given is not None:
            engine = given if isinstance(given, EngineProvider) else None
            return ServedModel(name, entry.kind, given, self._limits, engine=engine)
        section = entry.section
        if isinstance(section, UpstreamModel):
            return self._upstream(name, section)
        if isinstance(section, EngineModel):
            return self._engine(name, section)
        return self._encoder(name, section)

    def _upstream(self, name: str, upstream: UpstreamModel) -> ServedModel:
        api = open_api(name, upstream.api)
        targets = self._targets(name, upstream, api)
        memory = self._parts.fleet
        fleet = Fleet(targets, memory.budget(name), stays=memory.stays(name))

        def state() -> ModelState:
            shown = [str(trouble or "ready") for trouble in fleet.troubles]
            targets = shown if fleet.has_choice else None
            return ModelState(fleet.trouble is None, fleet.trouble or "ready", 1.0, targets=targets)

        # The provider itself enforces the limits on connecting, the first token and idling.
        return ServedModel(
            name,
            "upstream",
            targets[0].provider,
            TimeLimits(None, None, upstream.total_timeout_s),
            state,
            fleet=fleet,
            upstream_api=api.span_name,
            place=place_of("" if fleet.has_choice else upstream.base_url, upstream.model or name),
        )

    def _targets(self, name: str, upstream: UpstreamModel, api: Api) -> list[Target]:
        found = []
        rules = upstream.targets or [UpstreamTarget()]
        for (suffix, place), rule in zip(upstream.places().items(), rules, strict=True):
            key = self._settings.upstream_api_keys.get(name + suffix)
            proxy = self._settings.upstream_proxies.get(name + suffix, "")
            provider = api.provider(name, place, key, proxy)
            self.resources.append(provider)
            target = Target(
                provider,
                self._parts.fleet.health(name, place.place),
                place=place.place,
                weight=rule.weight,
                max_concurrent=rule.max_concurrent,
            )
            if upstream.targets:
                target.on_begun = partial(self._parts.metrics.target_began, f"{name} at {place.place}")
            found.append(target)
        return found

    def _engine(self, name: str, engine: EngineModel) -> ServedModel:
        tokenizer = Tokenizer.from_checkpoint(checkpoint_folder(engine.checkpoint))
        error = default_effort_error(tokenizer.thinking, engine.reasoning)
        if error:
            raise CheckpointError(
                f"models.{name}.engine.reasoning.default_effort is {engine.reasoning.default_effort!r}, but "
                f"{engine.checkpoint!r} cannot do that. {error}"
            )
        wait_s = self._settings.timeouts.engine_start_s
        replicas = self._replicas(name, engine)
        service = EngineService(
            replicas,
            tokenizer,
            wait_s,
            engine.reasoning,
            engine.tool_parser,
            engine.speculative,
            engine.unknown_fields,
            self.engines.values(),
        )
        provider = EngineProvider(service, name)
        served = ServedModel(
            name, "engine", provider, self._limits, self._state_of_engine(name, replicas), engine=provider
        )
        return replace(served, num_waiting=lambda: replicas.num_waiting)

    def _replicas(self, name: str, engine: EngineModel) -> Replicas:
        """The engines of a model, which are opened with the worker; those of a DNS name come later."""
        index = PageIndex()
        endpoints: Mapping[str, Endpoint] = (
            listed_endpoints(name, engine, self._settings)
            if engine.is_remote
            else {
                each: UnixEndpoint(self._settings.socket_paths[each])
                for each in replica_names(name, engine.replica_range.max)
            }
        )
        clients = {each: EngineClient(place, index.add_replica()) for each, place in endpoints.items()}
        for each in [] if engine.is_remote else [*clients][engine.replica_range.min :]:
            clients[each].may_sleep = True
            clients[each].is_asleep = partial(self._is_asleep, each)
        expected = Expected.of(engine) if engine.is_remote else None
        replicas = Replicas([*clients.values()], index, expected)
        self.resources += clients.values()
        self.engines |= clients
        if engine.dns is not None:
            door = Door(name, engine, self._settings)
            self.resources.append(DnsReplicas(name, parse_dns(engine.dns), door, replicas, self.engines))
        return replicas

    def _encoder(self, name: str, encoder: EncoderModel) -> ServedModel:
        client = EncoderClient(self._settings.socket_paths[name])
        self._encoders[name] = client
        self.resources.append(client)
        provider = EncoderProvider(name, client, encoder.unknown_fields)
        return ServedModel(name, "encoder", provider, self._limits, self._state(name, client))

    def _answer_digest(self, entry: ModelEntry) -> str:
        """SHA-256 of what a model's policy says about its answers.

        Vectors of different encoders cannot be compared: those of one's own have entries of their own.
        """
        section = msgspec.to_builtins(entry.section)
        for key in PLACEMENT:
            section.pop(key, None)
        digest = hashlib.sha256(msgspec.json.encode(section, order="deterministic"))
        if self._policies.compares_questions and self._fit.identity is not None and not self._fit.is_builtin:
            digest.update(self._fit.identity.digest.encode())
        return digest.hexdigest()

    def _is_asleep(self, process: str) -> bool:
        found = self._parts.statuses.get(process)
        return found is not None and found.phase == ASLEEP

    def _state_of_engine(self, name: str, replicas: Replicas) -> Callable[[], ModelState]:
        if any(client.is_remote for client in replicas.clients) or not replicas.clients:
            return lambda: _best([*map(remote_state, replicas.clients)] or [ModelState(False, "no address")])
        names = replica_names(name, len(replicas.clients))
        states = [
            _on_demand(self._state(each, client)) if client.may_sleep else self._state(each, client)
            for each, client in zip(names, replicas.clients, strict=True)
        ]
        return states[0] if len(states) == 1 else lambda: _best([each() for each in states])

    def _state(self, name: str, client: EngineClient | EncoderClient) -> Callable[[], ModelState]:
        def state() -> ModelState:
            if client.ready:
                return ModelState(ready=True, phase="ready", fraction=1.0)
            if client.hello is not None:
                is_draining = isinstance(client, EngineClient) and client.is_draining
                return ModelState(ready=False, phase="draining" if is_draining else "hung")
            found = self._parts.statuses.get(name)
            if found is None:
                return ModelState(ready=False, phase="starting")
            return ModelState(False, found.phase, found.fraction, _failure(found))

        return state


def remote_state(client: EngineClient) -> ModelState:
    """The state of an engine elsewhere, with its address and what is wrong."""
    if client.ready:
        return ModelState(ready=True, phase=f"ready at {client.place}", fraction=1.0)
    if client.refusal is not None:
        return ModelState(ready=False, phase=f"refused at {client.place}: {client.refusal.message}")
    if client.hello is not None:
        return ModelState(False, f"{'draining' if client.is_draining else 'hung'} at {client.place}")
    return ModelState(ready=False, phase=f"away at {client.place}: {client.fault or 'not asked yet'}")


def _best(states: Sequence[ModelState]) -> ModelState:
    """The state of a model with these replicas: the best one's, with the phases of all."""
    best = max(states, key=lambda each: (each.ready, each.fraction))
    return replace(best, phase=best.phase.partition(" at ")[0], targets=[each.phase for each in states])


def _on_demand(state: Callable[[], ModelState]) -> Callable[[], ModelState]:
    """The state of a process that may sleep: it can answer unless it fails, as requests wait for it."""

    def on_demand() -> ModelState:
        found = state()
        return replace(found, ready=found.failure is None and found.phase != "hung")

    return on_demand


def _failure(status: ProcessStatus) -> ModelFailure | None:
    failure = status.failure
    if failure is None:
        return None
    retry_in_s = max(0.0, failure.retry_at_s - time.time())
    return ModelFailure(failure.cause, failure.count, round(retry_in_s, 1))
