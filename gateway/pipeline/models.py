"""The names that can be asked for: models, each with its provider, and routes that lead to one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal

from gateway.errors import NotFound
from gateway.providers.base import Provider
from gateway.providers.engine.provider import EngineProvider
from gateway.web.deadlines import Limits
from policies.document import Price

Kind = Literal["engine", "upstream", "encoder"]


@dataclass(frozen=True, slots=True)
class ModelState:
    """Whether a model answers now; `phase` and `fraction` say how far a starting one is."""

    ready: bool
    phase: str = ""
    fraction: float = 0.0


def always_ready() -> ModelState:
    """The state of what we do not run ourselves: an upstream is not probed."""
    return ModelState(ready=True, phase="ready", fraction=1.0)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model name and everything that the gateway knows of it."""

    name: str
    kind: Kind
    provider: Provider
    limits: Limits
    state: Callable[[], ModelState] = always_ready
    engine: EngineProvider | None = None  # of our own engine only: tokenizer and limits, for /tokenize
    price: Price | None = None
    adapters: frozenset[str] = frozenset()  # those of the policy; the engine's client knows of others
    parent: str = ""  # an adapter's base model
    metrics_label: str = ""  # a name of the policies; "": its own
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def owned_by(self) -> str:
        """As /v1/models shows it."""
        return "upstream" if self.kind == "upstream" else "penstock"


def _adapters_of(model: ServedModel) -> AbstractSet[str]:
    return model.adapters if model.engine is None else model.adapters | model.engine.client.adapter_names


def _has_now(model: ServedModel, adapter: str) -> bool:
    """Whether the adapter is loaded, as far as the engine has said."""
    return model.engine is None or model.engine.client.has_adapter(adapter)


def _with_adapter(base: ServedModel, adapter: str, name: str) -> ServedModel:
    assert base.engine is not None
    engine = base.engine.with_adapter(adapter, name)
    adapted = replace(base, name=name, provider=engine, engine=engine, parent=base.name)
    # Metrics have a place for every name of the policies; what is loaded later counts with its base.
    label = adapter if adapter in base.adapters else base.name
    return replace(adapted, adapters=frozenset(), metrics_label=label)


class ModelTable:
    """Every model and route of one policy version. Immutable."""

    def __init__(self, models: Iterable[ServedModel], routes: Mapping[str, str]) -> None:
        """`routes`: name → a model's name, or an adapter's."""
        self.models: dict[str, ServedModel] = {model.name: model for model in models}
        self.routes = dict(routes)

    def resolve(self, name: str) -> ServedModel:
        """The model behind a model's or a route's name; raises NotFound with the nearest known name."""
        target = self.routes.get(name, name)
        found = self.models.get(name) or self.models.get(target) or self._adapted(target)
        if found is None:
            adapted = [model.name for model in self.adapted()]
            near = get_close_matches(name[:128], [*self.models, *self.routes, *adapted], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " GET /v1/models lists those that exist."
            raise NotFound(
                f"The model {name[:128]!r} does not exist.{hint}", param="model", code="model_not_found"
            )
        return found

    def adapted(self) -> list[ServedModel]:
        """Every adapter as a model: by its own name where that is unique, else as `base:adapter`.

        Without those of the policies that have been unloaded.
        """
        found = [(model, name) for model in self.models.values() for name in sorted(_adapters_of(model))]
        counts = Counter(name for _, name in found)
        return [
            _with_adapter(model, name, name if counts[name] == 1 else f"{model.name}:{name}")
            for model, name in found
            if _has_now(model, name)
        ]

    def bases_of(self, adapter: str) -> list[ServedModel]:
        """The models that have an adapter of this name, or are given one by the policies.

        Those of the policies count when they are unloaded, too: the name belongs to its base, whatever
        starts again.
        """
        return [model for model in self.models.values() if adapter in _adapters_of(model)]

    def _adapted(self, name: str) -> ServedModel | None:
        """The base model with an adapter, asked for as `adapter`, where that is unique, or `base:adapter`."""
        bases = self.bases_of(name)
        if len(bases) == 1:
            return _with_adapter(bases[0], name, name)
        for model in self.models.values():
            own = name.removeprefix(f"{model.name}:")
            if own != name and own in _adapters_of(model):
                return _with_adapter(model, own, name)
        return None

    def only_engine(self) -> ServedModel | None:
        """The one model of our own engine; None when there are none or several."""
        ours = [model for model in self.models.values() if model.engine is not None]
        return ours[0] if len(ours) == 1 else None
