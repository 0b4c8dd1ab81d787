"""Drafters that have weights: from the folders that the configuration names to what the engine can ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.kv.storage import KVStorage
from backend.models import LoadedModel
from backend.speculative.base import Drafter
from backend.speculative.draft_model import DraftModelDrafter
from backend.speculative.draft_network import DraftNetwork, load_network
from backend.speculative.folders import DRAFT_MODEL, check_folder


class LoadedDrafter(Protocol):
    """Weights, before it is known how much memory there is."""

    @property
    def page_bytes(self) -> int:
        """Memory that it needs beside each page of the target's KV memory."""
        ...

    def open(self, storage: KVStorage) -> Drafter:
        """The drafter of an engine with this KV memory."""
        ...


def load_drafters(config: EngineConfig, model: LoadedModel) -> list[LoadedDrafter]:
    """All that `config.speculative.folders` names. Raises CheckpointError."""
    chosen, folders = config.speculative.drafter, config.speculative.folders
    if chosen in LOADERS and chosen not in folders:
        raise CheckpointError(
            f"drafter {chosen!r} of model {config.model!r} needs weights; "
            f"name their folder under speculative.drafters.{chosen}"
        )
    found: list[LoadedDrafter] = []
    for name, folder in folders.items():
        if name not in LOADERS:
            known = ", ".join(sorted(LOADERS))
            raise CheckpointError(f"drafter {name!r} takes no weights; those that do are {known}")
        check_folder(name, Path(config.checkpoint), Path(folder))
        found.append(LOADERS[name](config, model, folder))
    return found


class _LoadedDraftModel:
    """See LoadedDrafter."""

    def __init__(self, network: DraftNetwork, *, prefix_cache: bool) -> None:
        self._network = network
        self._prefix_cache = prefix_cache

    @property
    def page_bytes(self) -> int:
        """Its own keys and values."""
        return self._network.kv_layout.page_bytes

    def open(self, storage: KVStorage) -> Drafter:
        """With as many pages as the target has."""
        return DraftModelDrafter(self._network, storage.num_pages, prefix_cache=self._prefix_cache)


def _load_draft_model(config: EngineConfig, model: LoadedModel, folder: str) -> LoadedDrafter:
    network = load_network(config, folder, config.max_model_tokens or model.config.max_position_tokens)
    return _LoadedDraftModel(network, prefix_cache=config.prefix_cache)


LOADERS: Mapping[str, Callable[[EngineConfig, LoadedModel, str], LoadedDrafter]] = {
    DRAFT_MODEL: _load_draft_model,
}
"""By the drafters' names in policies."""
