"""Rank 0's model, KV memory and adapters: all that changes them is told to the other ranks first."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from threading import Timer

import msgspec
import numpy as np
import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.engine.capacity import num_pages_for
from backend.errors import CheckpointError
from backend.kernels.lora import AdapterRows
from backend.kv.manager import pages_for
from backend.kv.storage import KVLayout, KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.step_input import StepInput
from backend.lora.adapter_weights import Adapter
from backend.lora.placement import AdapterPlacement
from backend.models.checkpoint_config import read_model_config
from backend.models.loaded import LoadedModel, load_model
from backend.parallel.group import Group, start
from backend.parallel.messages import (
    CountPages,
    Forward,
    Load,
    Logits,
    Message,
    Move,
    NewStorage,
    Place,
    Stop,
    Zero,
)
from backend.parallel.part import ModelPart, PartDecoder, PartPlacement
from backend.parallel.shape import check_parallel, rank_config
from backend.parallel.sites import sites_of_all

_CLOSE_S = 10.0

_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class Mirror:
    """Tells the other ranks."""

    group: Group
    num_storages: int = 0
    dropped: list[int] = field(default_factory=list)  # storages that are gone here
    step: StepInput | None = None  # that was opened last

    def tell(self, message: Message) -> None:
        """Have the other ranks carry this out."""
        self.group.broadcast(_encoder.encode(message))


class MirroredStorage(KVStorage):
    """This rank's part of KV memory that all ranks change alike."""

    __slots__ = ("__weakref__", "_mirror", "number")

    def __init__(
        self, mirror: Mirror, layout: KVLayout, num_pages: int, model: str, num_window_pages: int | None
    ) -> None:
        self._mirror, self.number = mirror, mirror.num_storages
        mirror.num_storages += 1
        mirror.tell(NewStorage(self.number, num_pages, num_window_pages, [*mirror.dropped]))
        mirror.dropped.clear()
        try:
            super().__init__(layout, num_pages, model=model, num_window_pages=num_window_pages)
        except CheckpointError as error:
            mirror.group.fail(error)
        mirror.group.settle()

    def __del__(self) -> None:
        self._mirror.dropped.append(self.number)  # told with the next one: this may be amid a step

    def zero(self, slot: int, window_slot: int) -> None:
        """The same as of its base."""
        self._mirror.tell(Zero(self.number, slot, window_slot))
        super().zero(slot, window_slot)

    def move(self, sources: Tensor, targets: Tensor, *, is_windowed: bool = False) -> None:
        """The same as of its base."""
        self._mirror.tell(Move(self.number, words(sources), words(targets), is_windowed))
        super().move(sources, targets, is_windowed=is_windowed)


class MirroredPlacement(PartPlacement):
    """Fills the slots of all ranks."""

    def __init__(self, mirror: Mirror, model: LoadedModel, num_slots: int) -> None:
        super().__init__(model.sites, num_slots, model.dtype, model.device)
        self._mirror = mirror

    def reserve(self, adapter: Adapter) -> None:
        """The same as of its base."""
        self._on_all(None, adapter, super().reserve)

    def place(self, slot: int, adapter: Adapter) -> None:
        """The same as of its base."""

        def place(adapter: Adapter) -> None:
            super(MirroredPlacement, self).place(slot, adapter)

        self._on_all(slot, adapter, place)

    def _on_all(self, slot: int | None, adapter: Adapter, run: Callable[[Adapter], None]) -> None:
        """Raises what failed on any rank, if it failed on this one, when the others are done as well."""
        factors = {module: (len(down), raw(down), raw(up)) for module, (down, up) in adapter.factors.items()}
        group = self._mirror.group
        self._mirror.tell(Place(slot, adapter.digest, adapter.rank, factors))
        try:
            run(adapter)
        except Exception as error:  # noqa: BLE001 - `settle` raises it
            group.fail(error)
        group.settle()


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredModel(LoadedModel):
    """Rank 0's part of a model. What it computes is the whole model's."""

    mirror: Mirror
    rank_config: EngineConfig

    @property
    def kv_layout(self) -> KVLayout:
        """The layout of this rank's keys and values."""
        return self.precision.kv_layout(self.decoder.config)

    def new_kv_storage(
        self, num_pages: int, num_states: int = 1, model: str = "", *, num_window_pages: int | None = None
    ) -> KVStorage:
        """KV memory on all ranks; no model that is split has recurrent states."""
        return MirroredStorage(self.mirror, self.kv_layout, num_pages, model, num_window_pages)

    def with_common_pages(self, drafter_page_bytes: int) -> EngineConfig:
        """The configuration with as many pages as each rank has room for. Raises CheckpointError."""
        own, group = num_pages_for(self.rank_config, self, drafter_page_bytes), self.mirror.group
        self.mirror.tell(CountPages())
        num_pages = group.least(own)
        group.settle()
        return msgspec.structs.replace(self.rank_config, num_pages=num_pages)

    def placement(self, num_slots: int) -> AdapterPlacement:
        """What fills adapter slots on all ranks."""
        return MirroredPlacement(self.mirror, self, num_slots)

    def open(self, step: StepInput, kv: KVStorage) -> AttentionContext:
        """The same as of its base; `forward` is called next, with that step's tokens."""
        self.mirror.step = step
        return LoadedModel.open(self, step, kv)

    def forward(
        self, token_ids: Tensor, context: AttentionContext, layers: list[Tensor] | None = None
    ) -> Tensor:
        """The same as of its base. Raises RankError for an error of another rank."""
        assert self.mirror.step is not None and isinstance(context.kv, MirroredStorage)
        self.mirror.tell(_forward(self.mirror.step, token_ids, context.kv.number))
        hidden = LoadedModel.forward(self, token_ids, context, layers)
        self.mirror.group.settle()
        return hidden

    def logits(self, hidden: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """The same as of its base. Raises RankError for an error of another rank."""
        assert isinstance(self.decoder, PartDecoder)
        if not self.decoder.is_split:
            return LoadedModel.logits(self, hidden, rows)
        hidden = hidden.contiguous()
        self.mirror.tell(Logits(len(hidden), None if rows is None else _words(rows.slots)))
        self.mirror.group.share(hidden)
        logits = LoadedModel.logits(self, hidden, rows)
        self.mirror.group.settle()
        return logits

    def close(self) -> None:
        """End the other ranks, or this process if they do not answer. Idempotent."""
        group = self.mirror.group
        if group.is_closing:
            return
        group.is_closing = True
        limit = Timer(_CLOSE_S, os._exit, (1,))
        limit.daemon = True
        limit.start()
        self.mirror.tell(Stop())
        group.close()
        limit.cancel()


def open_model(config: EngineConfig, on_progress: Callable[[float], None] | None = None) -> LoadedModel:
    """Load config.checkpoint, on as many ranks as it says. Raises CheckpointError."""
    size = config.parallel.size
    if size == 1:
        return load_model(config, on_progress)
    model = read_model_config(config.checkpoint, config.max_model_tokens)
    quantizes = config.quantize is not None
    check_parallel(config.parallel, model, config.speculative.folders, quantizes=quantizes)
    group, own = start(size), rank_config(config)
    mirror = Mirror(group)
    try:
        mirror.tell(Load(msgspec.structs.replace(own, sha256={})))  # this rank checks the files
        loaded = load_part(own, group, on_progress)
    except BaseException:
        group.close(kills=True)
        raise
    parts = {each.name: getattr(loaded, each.name) for each in fields(loaded)}
    parts["config"] = model
    found = MirroredModel(**parts, mirror=mirror, rank_config=own)
    atexit.register(found.close)
    return found


def check_cards(config: EngineConfig, num_ranks: int) -> None:
    """Raise CheckpointError unless each of the ranks on this machine has a card of its own, or all a CPU."""
    if config.device == "cpu" or num_ranks == 1 or not torch.cuda.is_available():
        return
    count = torch.cuda.device_count()
    if count >= num_ranks and ":" not in config.device:
        return
    raise CheckpointError(
        f"model {config.model!r} has {num_ranks} ranks here as parallel says, device {config.device!r}, and "
        f"torch finds {count} cards: each rank needs its own; set device to 'cuda', and make parallel "
        "smaller or CUDA_VISIBLE_DEVICES longer where cards are too few, or set device to 'cpu'"
    )


def load_part(
    config: EngineConfig, group: Group, on_progress: Callable[[float], None] | None = None
) -> LoadedModel:
    """Load this rank's part. Raises CheckpointError on all ranks if it does on one."""
    parallel = config.parallel
    group.arrange(parallel.width)
    if config.num_threads is None:
        torch.set_num_threads(max(1, torch.get_num_threads() // min(group.width, group.local_size)))
    loaded: LoadedModel | None = None
    try:
        check_cards(config, group.local_size)
        part = ModelPart(group, splits_experts=parallel.expert > 1)
        loaded = load_model(config, on_progress, part)
    except Exception as error:  # noqa: BLE001 - `settle` raises it
        group.fail(error)
    group.settle()
    assert loaded is not None
    return replace(loaded, sites=sites_of_all(group, loaded.sites, parallel))


def _forward(step: StepInput, token_ids: Tensor, storage: int) -> Forward:
    width = pages_for(max(step.context_lens))

    def pages(table: Tensor) -> bytes:
        return words(table[step.rows, :width])

    return Forward(
        storage,
        words(token_ids),
        step.query_lens,
        step.context_lens,
        pages(step.on_device.page_table),
        None if step.windowed is None else pages(step.windowed.page_table),
        dict(step.trees),
        None if step.adapters is None else _words(step.adapters.slots),
    )


def words(tensor: Tensor) -> bytes:
    """The numbers as int32."""
    return _words(tensor.cpu().numpy())


def _words(array: np.ndarray[tuple[int, ...], np.dtype[np.integer]]) -> bytes:
    return array.astype(np.int32).tobytes()


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor of any dtype."""
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
