"""Drafters that have weights: from the folders that the configuration names to what the engine can ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.kernels.graph_keys import Capture
from backend.kv.storage import KVStorage
from backend.models.loaded import LoadedModel
from backend.speculative.device_chains import Ahead
from backend.speculative.draft_model import DraftModelDrafter, load_draft_model
from backend.speculative.drafter import Drafter, StepObserver
from backend.speculative.eagle import EagleDrafter, load_eagle
from backend.speculative.heads import HiddenStates, max_model_tokens
from backend.speculative.late import LateDrafts
from backend.speculative.medusa import MedusaDrafter, load_medusa
from backend.speculative.mixture_of_attentions import MixtureDrafter, load_mixture
from backend.speculative.tree import TreeBudget
from backend.speculative.weights_check import DRAFT_MODEL, check_folder
from backend.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """One drafter's weights, before the size of KV memory is known."""

    page_bytes: int  # memory that it needs beside each page of the target's
    # With the target's KV memory and states; None: the host waits for what the device computes.
    open: Callable[[KVStorage, HiddenStates, Ahead | None], Drafter]
    reads_states: bool = False


@dataclass(frozen=True, slots=True)
class OpenDrafters:
    """What an engine gets, and what its runner must show its steps to."""

    drafters: list[Drafter]
    observers: list[StepObserver]


@dataclass(frozen=True, slots=True)
class LoadedDrafters:
    """All drafters of one model that have weights."""

    model: LoadedModel
    each: list[LoadedDrafter]
    ahead: Ahead

    @property
    def page_bytes(self) -> int:
        """Memory that they need beside each page of the target's KV memory."""
        own = sum(loaded.page_bytes for loaded in self.each)
        return own + PAGE_TOKENS * self._state_size * self.model.dtype.itemsize

    def open(
        self,
        storage: KVStorage,
        capture: Capture | None = None,
        late: LateDrafts | None = None,
        *,
        is_ahead: bool | None = None,
    ) -> OpenDrafters:
        """For an engine with this KV memory; with graphs where there is a `capture`.

        `late`: those of the runner that is to verify what drafters propose before it is read.
        `is_ahead`: whether chains do not wait for their device; None: if it is a GPU.
        """
        if is_ahead is None:
            is_ahead = storage.layout.device.type == "cuda"
        ahead = replace(self.ahead, capture=capture, late=late) if is_ahead else None
        states = HiddenStates(storage.num_pages, self._state_size, self.model.dtype, self.model.device)
        drafters = [loaded.open(storage, states, ahead) for loaded in self.each]
        observers: list[StepObserver] = [each for each in drafters if isinstance(each, MixtureDrafter)]
        return OpenDrafters(drafters, [*observers, states] if self._state_size else observers)

    @property
    def _state_size(self) -> int:
        """Width of the captured hidden states; 0 without a drafter that reads them."""
        return self.model.config.hidden_size if any(loaded.reads_states for loaded in self.each) else 0


def load_drafters(config: EngineConfig, model: LoadedModel) -> LoadedDrafters:
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
    longest = max_model_tokens(config, model) + config.speculative.max_tokens
    return LoadedDrafters(model, found, Ahead(config.max_running, config.speculative.max_tokens, longest))


def _draft_model(config: EngineConfig, model: LoadedModel, folder: str) -> LoadedDrafter:
    network = load_draft_model(config, folder, max_model_tokens(config, model))
    return LoadedDrafter(
        network.kv_layout.page_bytes,
        lambda storage, _, ahead: DraftModelDrafter(
            network, storage.num_pages, prefix_cache=config.prefix_cache, ahead=ahead
        ),
    )


def _eagle(config: EngineConfig, model: LoadedModel, folder: str) -> LoadedDrafter:
    network, trees = load_eagle(config, model, folder), _trees(config, config.speculative.max_tokens)
    return LoadedDrafter(
        network.kv_layout.page_bytes,
        lambda storage, states, ahead: EagleDrafter(network, storage.num_pages, states, trees, ahead),
        reads_states=True,
    )


def _medusa(config: EngineConfig, model: LoadedModel, folder: str) -> LoadedDrafter:
    network = load_medusa(model, folder)
    trees = _trees(config, min(config.speculative.max_tokens, network.num_heads))
    return LoadedDrafter(
        0, lambda _, states, ahead: MedusaDrafter(network, states, trees, ahead), reads_states=True
    )


def _mixture(config: EngineConfig, model: LoadedModel, folder: str) -> LoadedDrafter:
    network = load_mixture(config, model, folder)
    return LoadedDrafter(
        network.kv_layout.page_bytes, lambda storage, _, ahead: MixtureDrafter(network, storage, ahead)
    )


def _trees(config: EngineConfig, depth: int) -> TreeBudget | None:
    """For a drafter that looks `depth` tokens ahead; None: chains."""
    num_nodes = config.speculative.tree_nodes
    return TreeBudget(num_nodes, depth) if num_nodes else None


LOADERS: Mapping[str, Callable[[EngineConfig, LoadedModel, str], LoadedDrafter]] = {
    DRAFT_MODEL: _draft_model,
    "eagle": _eagle,
    "medusa": _medusa,
    "mixture_of_attentions": _mixture,
}
"""By the drafters' names in policies."""
