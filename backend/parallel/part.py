"""One rank's part of a model: layers of its stage, read by slice or with some experts, summed in each.

The first stage has the embedding and the head too, so that only hidden states go between stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from backend.config import ModelConfig, MoEConfig
from backend.kernels.lora import AdapterRows, Factors
from backend.layers.attention import AttentionContext
from backend.layers.embedding import Embedding
from backend.layers.linear import LinearPart
from backend.layers.moe import MoE
from backend.lora.adapter_weights import Adapter, Sites
from backend.lora.placement import AdapterPlacement
from backend.models.build import DecoderBuilder
from backend.models.decoder import Decoder, DecoderLayer
from backend.models.families import FAMILIES
from backend.models.loaded import NameOf, WholeModel
from backend.models.names import ExpertNames, WeightNames
from backend.models.precision import Precision
from backend.models.weights import WeightReader
from backend.parallel.experts import PartExperts
from backend.parallel.group import Group
from backend.parallel.shape import kv_parts, part_of, share
from backend.parallel.sites import Elsewhere

ROWS, COLUMNS = 0, 1
_TABLES = ("embed_tokens", "lm_head")
_AXES = {
    **dict.fromkeys((*_TABLES, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3"), ROWS),
    **dict.fromkeys(("o_proj", "down_proj", "w2"), COLUMNS),
}
"""By the last part of modules' names in the families of shape.py; what is not here, each rank has whole."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Which layers, which rows or columns of the checkpoint's matrices, and which experts, a rank has."""

    model: ModelConfig  # as it is stored
    rank: int  # in its stage
    size: int  # of its stage
    layers: range
    experts: range | None = None  # not None: these alone, and nothing of a layer is split

    def axis(self, module: str) -> int | None:
        """Along which dimension a module's weight is split; None: not at all."""
        return _AXES.get(module.rpartition(".")[2])

    def total(self, module: str, own: int) -> int:
        """How many rows or columns are stored where a rank has `own`."""
        last = module.rpartition(".")[2]
        if last in _TABLES:
            return self.model.vocab_size
        return own * (kv_parts(self.model, self.size) if last in ("k_proj", "v_proj") else self.size)

    def span(self, module: str, own: int) -> slice:
        """The rank's rows or columns; the last one's may be fewer than `own` where tables do not divide."""
        total = self.total(module, own)
        is_table = module.rpartition(".")[2] in _TABLES
        parts = self.size if is_table else total // own
        begin = self.rank * parts // self.size * own
        return slice(begin, min(begin + own, total))


class PartReader(WeightReader):
    """Reads a rank's slices; shapes that are asked for are those of slices."""

    def __init__(
        self, cut: Cut, source: tuple[str, Callable[[float], None] | None, NameOf, tuple[str, ...]]
    ) -> None:
        super().__init__(*source)
        self._cut = cut
        self.num_elements = 0  # read so far

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The slice, padded with zeros where a table ends before it."""
        module, _, kind = name.rpartition(".")
        axis = self._cut.axis(module)
        if axis is None:
            found = super().get(name, shape)
        elif kind == "bias" and axis == COLUMNS:  # of a sum: one rank adds it
            found = super().get(name, shape)
            found = found if self._cut.rank == 0 else torch.zeros_like(found)
        else:
            found = self._slice(name, shape, axis)
        self.num_elements += found.numel()
        return found

    def _slice(self, name: str, shape: tuple[int, ...], axis: int) -> Tensor:
        module, own = name.rpartition(".")[0], shape[axis]
        stored = (*shape[:axis], self._cut.total(module, own), *shape[axis + 1 :])
        whole, span = super().get(name, stored), self._cut.span(module, own)
        found = whole[span] if axis == ROWS else whole[:, span]  # mapped: only that is read
        missing = own - found.shape[axis]
        if missing:
            padding = found.new_zeros((missing, *found.shape[1:]))
            return torch.cat((found, padding))
        return found.contiguous()


@dataclass(frozen=True, slots=True)
class SplitPart(LinearPart):
    """A projection of which this rank has a part; adapters are written for the whole."""

    module: str = ""
    cut: Cut | None = None

    @property
    def in_features(self) -> int:
        """K of the whole."""
        own = self.linear.in_features
        return self.cut.total(self.module, own) if self.cut and self._axis == COLUMNS else own

    @property
    def columns(self) -> int:
        """The outputs of the whole."""
        own = self.linear.part_features[self.part]
        return self.cut.total(self.module, own) if self.cut and self._axis == ROWS else own

    def slice(self, factors: Factors) -> Factors:
        """This rank's part of an adapter's (down [r, K], up [r, columns])."""
        down, up = factors
        assert self.cut is not None
        if self._axis == COLUMNS:
            return down[:, self.cut.span(self.module, self.linear.in_features)].contiguous(), up
        own = self.linear.part_features[self.part]
        up = up[:, self.cut.span(self.module, own)]
        return down, torch.nn.functional.pad(up, (0, own - up.shape[1])).contiguous()

    @property
    def _axis(self) -> int | None:
        return None if self.cut is None else self.cut.axis(self.module)


class PartPlacement(AdapterPlacement):
    """Places this rank's part of whole adapters."""

    def __init__(self, sites: Sites, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(sites, num_slots, dtype, device)
        self._whole = sites

    def reserve(self, adapter: Adapter) -> None:
        """The same as of its base."""
        super().reserve(self._own(adapter))

    def place(self, slot: int, adapter: Adapter) -> None:
        """The same as of its base."""
        super().place(slot, self._own(adapter))

    def _own(self, adapter: Adapter) -> Adapter:
        factors = {
            module: site.slice(own) if isinstance(site := self._whole[module], SplitPart) else own
            for module, own in adapter.factors.items()
            if not isinstance(self._whole[module].linear, Elsewhere)
        }
        return replace(adapter, factors=factors)


class PartEmbedding(Embedding):
    """A part of the vocabulary's rows; the others are zero."""

    __slots__ = ("begin",)

    def __init__(self, whole: Embedding, begin: int) -> None:
        super().__init__(whole.weight, whole.dtype, whole.scale)
        self.begin = begin

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[T] → [T, D], to be summed over ranks."""
        own = token_ids - self.begin
        is_other = (own < 0) | (own >= self.weight.shape[0])
        return super().__call__(own.masked_fill(is_other, 0)).masked_fill_(is_other[:, None], 0)


@dataclass(frozen=True, slots=True)
class PartDecoder(Decoder):
    """The decoder of a rank: what the sublayers of its stage give is summed before the next norm."""

    group: Group
    vocab_size: int
    is_split: bool  # in heads, blocks and vocabulary

    def forward(
        self, token_ids: Tensor, context: AttentionContext | None, layers: list[Tensor] | None = None
    ) -> Tensor:
        """The same as of its base, on every rank. Without `context` an attempt has failed already."""
        group, width = self.group, self.config.hidden_size
        with group.together():
            hidden = torch.zeros(len(token_ids), width, dtype=self.embedding.dtype, device=token_ids.device)
            if group.stage:
                hidden = group.receive(hidden)
            else:
                embedded = group.attempt(self.embedding, token_ids)
                hidden = self._joined(embedded, hidden, is_part=self.is_split)
            run = self._run_parts if group.width > 1 else self._run_stage
            hidden = run(hidden, context, layers)
            if group.num_stages > 1:
                group.pass_on(hidden)
                if not group.stage:
                    hidden = group.receive(hidden)
            return hidden

    def _run_stage(
        self, hidden: Tensor, context: AttentionContext | None, layers: list[Tensor] | None
    ) -> Tensor:
        assert layers is None
        found = None if context is None else self.group.attempt(Decoder._run, self, hidden, context, None)
        return hidden.zero_() if found is None else found

    def _run_parts(
        self, hidden: Tensor, context: AttentionContext | None, layers: list[Tensor] | None
    ) -> Tensor:
        group = self.group
        added: Tensor | None = None
        for layer in self.layers:
            if layers is not None and added is not None:
                captured = group.attempt(torch.add, hidden, added)
                layers.append(hidden if captured is None else captured)
            mixed = group.attempt(_mix, layer, hidden, context, added)
            mixed = self._joined(mixed, hidden, is_part=self.is_split)
            fed = group.attempt(_feed, layer, hidden, context, mixed)
            is_part = self.is_split or isinstance(layer.feed_forward, PartExperts)
            added = self._joined(fed, hidden, is_part=is_part)
        assert added is not None
        return hidden.add_(added)

    def _joined(self, found: Tensor | None, spare: Tensor, *, is_part: bool) -> Tensor:
        """What the ranks have `found`, each a part of it or the same; None: the attempt failed."""
        if is_part:
            return self.group.sum(found, spare)
        return spare.zero_() if found is None else found

    def logits(self, hidden: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """The same as of its base, on rank 0; others get what they gave."""
        if not self.is_split:
            return Decoder.logits(self, hidden, rows)
        with self.group.together():
            part = self.group.attempt(self._part_logits, hidden, rows)
            if part is None:
                part = torch.zeros(len(hidden), self.config.vocab_size, device=hidden.device)
            parts = self.group.gather(part)
            return torch.cat(parts, dim=1)[:, : self.vocab_size] if parts else part

    def _part_logits(self, hidden: Tensor, rows: AdapterRows | None) -> Tensor:
        return self.head(self.final_norm(hidden), rows).to(torch.float32)


def _mix(
    layer: DecoderLayer, hidden: Tensor, context: AttentionContext | None, added: Tensor | None
) -> Tensor:
    assert context is not None
    return layer.mixer(layer.attention_norm(hidden, added), context)


def _feed(layer: DecoderLayer, hidden: Tensor, context: AttentionContext | None, mixed: Tensor) -> Tensor:
    assert context is not None
    return layer.feed_forward(layer.mlp_norm(hidden, mixed), context.adapters)


class PartBuilder(DecoderBuilder):
    """Builds a rank's decoder."""

    def __init__(
        self, cut: Cut, group: Group, names: WeightNames, reader: WeightReader, precision: Precision
    ) -> None:
        super().__init__(part_of(cut.model, cut.size), names, reader, precision)
        own = cut.layers
        self.first_layer = own.start
        self.config = replace(self.config, layers=self.config.layers[own.start : own.stop])
        if own.start:
            self.config = replace(self.config, vocab_size=1)  # a row that is never used
        self._cut, self._group = cut, group

    def build(self) -> Decoder:
        """The same as of its base."""
        decoder = super().build()
        if self._group.width > 1:
            plain = all(type(layer) is DecoderLayer for layer in decoder.layers)
            assert plain, "shape.py lists the families"
        if self._cut.size > 1:
            self.sites = {
                name: SplitPart(part.linear, part.part, part.order, name, self._cut)
                for name, part in self.sites.items()
            }
        if self.first_layer:
            del self.sites[self.names.head.removesuffix(".weight")]
        parts = {field.name: getattr(decoder, field.name) for field in fields(decoder)}
        total, is_split = self._cut.model.vocab_size, self._cut.size > 1
        return PartDecoder(**parts, group=self._group, vocab_size=total, is_split=is_split)

    def _experts_of(self, moe: MoEConfig) -> range:
        return super()._experts_of(moe) if self._cut.experts is None else self._cut.experts

    def _moe(self, layer: int, prefix: str, moe: MoEConfig, names: ExpertNames) -> MoE:
        found = super()._moe(layer, prefix, moe, names)
        return found if self._cut.experts is None else PartExperts(found, self._cut.experts)

    def embedding(self, table: Tensor, stored: torch.dtype) -> Embedding:
        """The embedding of this rank's part of the vocabulary."""
        own = super().embedding(table, stored)
        if self._cut.size == 1:
            return own
        return PartEmbedding(own, self._cut.span("embed_tokens", self.config.vocab_size).start)


class ModelPart(WholeModel):
    """How a rank reads its part."""

    def __init__(self, group: Group, *, splits_experts: bool = False) -> None:
        """`splits_experts`: the ranks of a stage have different experts, and the same of all else."""
        self._group, self._splits_experts = group, splits_experts
        self.num_elements = 0  # read, at the end

    def reader(
        self, model: ModelConfig, source: tuple[str, Callable[[float], None] | None, NameOf, tuple[str, ...]]
    ) -> WeightReader:
        """The same as of its base."""
        cut, (directory, on_progress, name_of, others) = self._cut(model), source
        names = FAMILIES[model.architecture].names
        elsewhere = [names.layer.format(layer=n) for n in range(model.num_layers) if n not in cut.layers]
        if cut.experts is not None:
            assert isinstance(names.experts, ExpertNames) and model.experts is not None
            experts = sorted({*range(model.experts.num_experts)} - {*cut.experts})
            prefix = names.layer + names.experts.gate.partition("{expert}")[0] + "{expert}."
            elsewhere += [prefix.format(layer=n, expert=each) for n in cut.layers for each in experts]
        return PartReader(cut, (directory, on_progress, name_of, (*others, *elsewhere)))

    def builder(
        self, model: ModelConfig, names: WeightNames, reader: WeightReader, precision: Precision
    ) -> DecoderBuilder:
        """The same as of its base."""
        return PartBuilder(self._cut(model), self._group, names, reader, precision)

    def _cut(self, model: ModelConfig) -> Cut:
        group = self._group
        layers = share(model.num_layers, group.stage, group.num_stages)
        if not self._splits_experts:
            return Cut(model, group.rank_in_stage, group.width, layers)
        assert model.experts is not None
        experts = share(model.experts.num_experts, group.rank_in_stage, group.width)
        return Cut(model, 0, 1, layers, experts)
