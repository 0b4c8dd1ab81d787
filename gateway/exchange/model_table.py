"""The names that a request may ask for: models, each with its provider, LoRA adapters and routes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal

from gateway.answer import Answer, Relayed
from gateway.errors import NotFound
from gateway.fleet.fleet import AskProvider, Fleet, Patience
from gateway.providers.base import Provider
from gateway.providers.engine.provider import EngineProvider
from gateway.response_cache.settings import CacheSettings
from gateway.web.deadlines import TimeLimits
from policies.prices import Price
from policies.releases import Capabilities
from policies.retries import NO_RETRY

Kind = Literal["engine", "upstream", "encoder"]


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """A model's process has failed several times in a row in the same way."""

    cause: str
    count: int
    retry_in_s: float


@dataclass(frozen=True, slots=True)
class ModelState:
    """Whether a model answers now; `phase` and `fraction` (0 to 1) are the progress of one that starts."""

    ready: bool
    phase: str = ""
    fraction: float = 0.0
    failure: ModelFailure | None = None
    targets: list[str] | None = None  # the phase of each of an upstream's, where there are several


def always_ready() -> ModelState:
    """The state of what has no process of ours, and of an upstream of which nothing bad is known."""
    return ModelState(ready=True, phase="ready", fraction=1.0)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model's name, its provider and what the policies say about it."""

    name: str
    kind: Kind
    provider: Provider
    limits: TimeLimits
    state: Callable[[], ModelState] = always_ready
    num_waiting: Callable[[], int] = lambda: 0  # requests in our engine's queue, as of its last heartbeat
    engine: EngineProvider | None = None  # `provider` again, when it is our engine
    fleet: Fleet | None = None  # what calls an upstream, and again where it fails
    upstream_api: str = "openai"  # that an upstream speaks, as OpenTelemetry names its provider
    place: Mapping[str, str | int] = field(default_factory=dict)  # for spans: see `place_of`
    price: Price | None = None
    capabilities: Capabilities = Capabilities()
    cache: CacheSettings | None = None  # None: a model whose answers cannot be kept
    guardrails: str = ""  # name of their profile; "": none
    policy_digest: str = ""  # of its section of the policies, as far as it changes answers
    adapters: frozenset[str] = frozenset()  # of the policies; the engine may have loaded others
    parent: str = ""  # an adapter's base model
    metrics_label: str = ""  # one of the policies' names; "": `name`
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_out(self) -> bool:
        """Whether it is an upstream that others should answer for, as it has failed."""
        return self.kind == "upstream" and not self.state().ready

    async def ask_once(self, ask: AskProvider) -> Answer:
        """The answer to a request of the gateway's own, without retries."""
        if self.fleet is None:
            return await ask(self.provider)
        return await self.fleet.ask(ask, Patience(NO_RETRY, lambda: 0.0))

    def answered_as(self, answer: Answer | None) -> str:
        """What answers, as it names itself; "" where an upstream does not tell."""
        if self.kind != "upstream":
            return self.name
        return answer.response_model if isinstance(answer, Relayed) else ""

    def revision(self) -> str | None:
        """Identifies what answers, its weights and its policy; None while the engine is away."""
        if self.engine is None:
            return self.policy_digest
        fingerprint = self.engine.model.fingerprint
        return None if fingerprint is None else f"{self.policy_digest}:{fingerprint}"

    @property
    def owned_by(self) -> str:
        """The owner that /v1/models shows."""
        return "upstream" if self.kind == "upstream" else "penstock"


def _adapters_of(model: ServedModel) -> AbstractSet[str]:
    return model.adapters if model.engine is None else model.adapters | model.engine.client.adapter_names


def _is_loaded(model: ServedModel, adapter: str) -> bool:
    """True unless the engine has listed its adapters and this one is not among them."""
    return model.engine is None or model.engine.client.has_adapter(adapter)


def _with_adapter(base: ServedModel, adapter: str, name: str) -> ServedModel:
    adapted = replace(base, name=name, parent=base.name)
    if base.engine is not None:  # else in a dry run
        engine = base.engine.with_adapter(adapter, name)
        adapted = replace(adapted, provider=engine, engine=engine)
    # Label values of metrics are fixed at start; adapters loaded later count as their base model.
    label = adapter if adapter in base.adapters else base.name
    return replace(adapted, adapters=frozenset(), metrics_label=label)


class ModelTable:
    """Every model and route of one policy version. Immutable."""

    def __init__(
        self,
        models: Iterable[ServedModel],
        routes: Mapping[str, str],
        releases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`routes`: name → a model's name, or an adapter's. `releases`: model → its stable release."""
        self.models: dict[str, ServedModel] = {model.name: model for model in models}
        self.routes = dict(routes)
        self._releases = dict(releases)

    def resolve(self, name: str) -> ServedModel:
        """The model of a model's, adapter's or route's name, in its stable release. Raises NotFound."""
        target = name if name in self.models else self.routes.get(name, name)
        target = self._releases.get(target, target)
        found = self.models.get(target) or self._find_adapter(target)
        if found is None:
            adapters = [model.name for model in self.adapter_models()]
            near = get_close_matches(name[:128], [*self.models, *self.routes, *adapters], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " GET /v1/models lists those that exist."
            raise NotFound(
                f"The model {name[:128]!r} does not exist.{hint}", param="model", code="model_not_found"
            )
        return found

    def adapter_models(self) -> list[ServedModel]:
        """Every loaded adapter as a model, named `adapter` where that is unique, else `base:adapter`."""
        found = [(model, name) for model in self.models.values() for name in sorted(_adapters_of(model))]
        counts = Counter(name for _, name in found)
        return [
            _with_adapter(model, name, name if counts[name] == 1 else f"{model.name}:{name}")
            for model, name in found
            if _is_loaded(model, name)
        ]

    def bases_of(self, adapter: str) -> list[ServedModel]:
        """The base models with an adapter of this name, loaded or in the policies.

        A name in the policies stays its base's while the adapter is unloaded: a restart of the gateway loads
        it again.
        """
        return [model for model in self.models.values() if adapter in _adapters_of(model)]

    def _find_adapter(self, name: str) -> ServedModel | None:
        """The adapter named `adapter`, where that is unique, or `base:adapter`."""
        bases = self.bases_of(name)
        if len(bases) == 1:
            return _with_adapter(bases[0], name, name)
        for model in self.models.values():
            own = name.removeprefix(f"{model.name}:")
            if own != name and own in _adapters_of(model):
                return _with_adapter(model, own, name)
        return None

    def only_engine(self) -> ServedModel | None:
        """The one model that our engine serves; None when there are none or several."""
        ours = [model for model in self.models.values() if model.engine is not None]
        return ours[0] if len(ours) == 1 else None
