"""Drafters that have weights: from the folders that the configuration names to what the engine can ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.kv.storage import KVStorage
from backend.models import LoadedModel
from backend.speculative.draft_loading import DraftModel, load_draft_model
from backend.speculative.draft_model import DraftModelDrafter
from backend.speculative.drafter import Drafter, StepObserver
from backend.speculative.eagle import EagleDrafter
from backend.speculative.eagle_network import EagleNetwork, load_eagle
from backend.speculative.hidden_states import HiddenStates
from backend.speculative.medusa import MedusaDrafter, MedusaNetwork, load_medusa
from backend.speculative.mixture_loading import load_mixture
from backend.speculative.mixture_of_attentions import MixtureDrafter
from backend.speculative.mixture_rounds import MixtureHead
from backend.speculative.tree import TreeBudget
from backend.speculative.weights_check import DRAFT_MODEL, check_folder
from backend.types import PAGE_TOKENS


class Loaded(Protocol):
    """One drafter's weights, before it is known how much memory there is."""

    @property
    def page_bytes(self) -> int:
        """Memory that it needs beside each page of the target's KV memory."""
        ...

    @property
    def reads_states(self) -> bool:
        """Whether it reads what leaves the target's last layer."""
        ...

    def open(self, storage: KVStorage, states: HiddenStates | None) -> Drafter:
        """The drafter of an engine with this KV memory."""
        ...


@dataclass(frozen=True, slots=True)
class OpenDrafters:
    """What an engine gets, and whom its runner must show what it computes."""

    drafters: list[Drafter]
    observers: list[StepObserver]


@dataclass(frozen=True, slots=True)
class LoadedDrafters:
    """All drafters of one model that have weights."""

    model: LoadedModel
    each: list[Loaded]

    @property
    def page_bytes(self) -> int:
        """Memory that they need beside each page of the target's KV memory."""
        states = PAGE_TOKENS * self.model.config.hidden_size * self.model.dtype.itemsize
        own = sum(loaded.page_bytes for loaded in self.each)
        return own + (states if self._read_states else 0)

    def open(self, storage: KVStorage) -> OpenDrafters:
        """For an engine with this KV memory."""
        states = None
        if self._read_states:
            model = self.model
            states = HiddenStates(storage.num_pages, model.config.hidden_size, model.dtype, model.device)
        drafters = [loaded.open(storage, states) for loaded in self.each]
        observers: list[StepObserver] = [each for each in drafters if isinstance(each, MixtureDrafter)]
        if states is not None:
            observers.append(states)
        return OpenDrafters(drafters, observers)

    @property
    def _read_states(self) -> bool:
        return any(loaded.reads_states for loaded in self.each)


def load_drafters(config: EngineConfig, model: LoadedModel) -> LoadedDrafters:
    """All that `config.speculative.folders` names. Raises CheckpointError."""
    chosen, folders = config.speculative.drafter, config.speculative.folders
    if chosen in LOADERS and chosen not in folders:
        raise CheckpointError(
            f"drafter {chosen!r} of model {config.model!r} needs weights; "
            f"name their folder under speculative.drafters.{chosen}"
        )
    found: list[Loaded] = []
    for name, folder in folders.items():
        if name not in LOADERS:
            known = ", ".join(sorted(LOADERS))
            raise CheckpointError(f"drafter {name!r} takes no weights; those that do are {known}")
        check_folder(name, Path(config.checkpoint), Path(folder))
        found.append(LOADERS[name](config, model, folder))
    return LoadedDrafters(model, found)


@dataclass(frozen=True, slots=True)
class _DraftModel:
    """See Loaded."""

    model: DraftModel
    prefix_cache: bool
    reads_states: bool = False

    @property
    def page_bytes(self) -> int:
        return self.model.page_bytes

    def open(self, storage: KVStorage, states: HiddenStates | None) -> Drafter:
        num_pages = storage.num_pages
        return DraftModelDrafter(self.model.open(num_pages), num_pages, prefix_cache=self.prefix_cache)


@dataclass(frozen=True, slots=True)
class _Eagle:
    """See Loaded."""

    network: EagleNetwork
    trees: TreeBudget | None
    reads_states: bool = True

    @property
    def page_bytes(self) -> int:
        return self.network.kv_layout.page_bytes

    def open(self, storage: KVStorage, states: HiddenStates | None) -> Drafter:
        assert states is not None
        own = KVStorage(self.network.kv_layout, storage.num_pages)
        return EagleDrafter(self.network, own, states, self.trees)


@dataclass(frozen=True, slots=True)
class _Medusa:
    """See Loaded."""

    network: MedusaNetwork
    trees: TreeBudget | None
    page_bytes: int = 0
    reads_states: bool = True

    def open(self, storage: KVStorage, states: HiddenStates | None) -> Drafter:
        assert states is not None
        return MedusaDrafter(self.network, states, self.trees)


@dataclass(frozen=True, slots=True)
class _Mixture:
    """See Loaded."""

    head: MixtureHead
    reads_states: bool = False

    @property
    def page_bytes(self) -> int:
        return self.head.page_bytes

    def open(self, storage: KVStorage, states: HiddenStates | None) -> Drafter:
        return MixtureDrafter(self.head.open(storage), storage.num_pages, storage.layout.device)


def _load_draft_model(config: EngineConfig, model: LoadedModel, folder: str) -> Loaded:
    return _DraftModel(load_draft_model(config, folder, _most_tokens(config, model)), config.prefix_cache)


def _load_eagle(config: EngineConfig, model: LoadedModel, folder: str) -> Loaded:
    return _Eagle(load_eagle(folder, model), _trees(config, config.speculative.max_tokens))


def _load_medusa(config: EngineConfig, model: LoadedModel, folder: str) -> Loaded:
    network = load_medusa(folder, model)
    return _Medusa(network, _trees(config, min(config.speculative.max_tokens, network.num_heads)))


def _load_mixture(config: EngineConfig, model: LoadedModel, folder: str) -> Loaded:
    most_tokens = _most_tokens(config, model)
    return _Mixture(load_mixture(folder, model, most_tokens, most_tokens + config.speculative.max_tokens))


def _trees(config: EngineConfig, depth: int) -> TreeBudget | None:
    """For a drafter that looks so far ahead at most; None: it is to give chains."""
    num_nodes = config.speculative.tree_nodes
    return TreeBudget(num_nodes, depth) if num_nodes else None


def _most_tokens(config: EngineConfig, model: LoadedModel) -> int:
    return config.max_model_tokens or model.config.max_position_tokens


LOADERS: Mapping[str, Callable[[EngineConfig, LoadedModel, str], Loaded]] = {
    DRAFT_MODEL: _load_draft_model,
    "eagle": _load_eagle,
    "medusa": _load_medusa,
    "mixture_of_attentions": _load_mixture,
}
"""By the drafters' names in policies."""
