"""A Mixture-of-Attentions head (arXiv 2410.03804), which reads the streams after all of the target's layers.

Of these it keeps, at every slot of KV memory, the keys and values that its two attentions make of them:
right for prefix hits and after preemption, and nothing is to be freed. They are made when drafts are asked
for, or when many tokens wait. Pages that were not captured are hidden from drafts, and without the last two
a sequence has none. Format: pico/drafters/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.kernels import draft_chain
from backend.kernels.paged_attention import Group, WindowPlan, paged_attention
from backend.kernels.rotary import Angles, rotate
from backend.kernels.tiles import in_tiles
from backend.kernels.upload import upload
from backend.kv.manager import pages_for
from backend.kv.storage import KVLayout, KVStorage
from backend.layers.attention import Attention, AttentionContext
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm
from backend.layers.rope import Rope
from backend.layers.step_input import StepInput
from backend.models.decoder import Decoder, DecoderLayer
from backend.models.loaded import LoadedModel
from backend.models.weights import WeightReader
from backend.speculative.device_chains import Ahead, Chains, Level, RollOuts, Spare, context_of
from backend.speculative.draft_length import step_clock
from backend.speculative.drafter import Capture, Drafter
from backend.speculative.heads import HeadReader, LayerShape, max_model_tokens, read_shape, slots_of
from backend.speculative.rollout import Beam, Bools, RolloutKV, page_table, roll_out, roll_out_compiled
from backend.types import PAGE_TOKENS, Draft, Plan, ScheduledChunk, Sequence

SELF, CROSS = 0, 1
"""Layers of the head's KV memory: its self-attention, and its memory of the target's streams."""


class MixtureShape(LayerShape, frozen=True):
    """Its config.json."""

    num_target_layers: int
    layer_attention_heads: int
    target_layers: int


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Attention between the streams after the layers of one position, and their mean: the memory."""

    stream_norm: RMSNorm
    layer_embed: Tensor  # [layers, D]
    qkv: Linear
    qk_norm: RMSNorm  # [2 * heads, head_dim]
    out: Linear
    output_norm: RMSNorm

    def __call__(self, streams: Tensor) -> Tensor:
        """[T, layers, D] → [T, D]."""
        count, num_layers, width = streams.shape
        num_turned, head_dim = self.qk_norm.weight.shape
        x = self.stream_norm(streams) + self.layer_embed
        heads = self.qkv(x.view(-1, width)).view(count, num_layers, -1, head_dim)
        queries, keys = self.qk_norm(heads[:, :, :num_turned]).transpose(1, 2).chunk(2, dim=1)
        mixed = F.scaled_dot_product_attention(queries, keys, heads[:, :, num_turned:].transpose(1, 2))
        # The mean of what layers get is what their mean gets.
        return self.output_norm(x.mean(dim=1) + self.out(mixed.mean(dim=2).reshape(count, -1)))


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Queries of drafted tokens over the memory of verified ones."""

    keys_values: Linear
    key_norm: RMSNorm  # [kv_heads, head_dim]
    norm: RMSNorm
    queries: Linear
    query_norm: RMSNorm  # [heads, head_dim]
    out: Linear

    def memorise(self, memory: Tensor, angles: Angles) -> Tensor:
        """Memory [T, D] → keys and values [T, 2 * kv_heads, head_dim]."""
        kv_heads, head_dim = self.key_norm.weight.shape
        found = self.keys_values(memory).view(len(memory), -1, head_dim)
        keys = found[:, :kv_heads]
        rotate(keys, angles, self.key_norm.weight, self.key_norm.eps)
        return found

    def __call__(
        self, x: Tensor, added: Tensor, stored: Tensor, plan: WindowPlan | list[Group], angles: Angles
    ) -> Tensor:
        """x [B, D], to which `added` is added in place, → [B, D], over `stored` pages."""
        queries = self.queries(self.norm(x, added)).view(len(x), *self.query_norm.weight.shape)
        rotate(queries, angles, self.query_norm.weight, self.query_norm.eps)
        return self.out(paged_attention(queries, stored, plan))


@dataclass(frozen=True, slots=True)
class MixtureNetwork:
    """Weights and arithmetic; holds no state of any sequence."""

    embedded: Tensor  # [vocabulary, D]: normed
    layer: DecoderLayer
    layer_attention: LayerAttention
    cross: CrossAttention
    output_norm: RMSNorm
    rope: Rope
    target: Decoder
    target_layers: list[DecoderLayer]  # the last ones, over a storage that holds these alone
    kv_layout: KVLayout
    chain: draft_chain.ChainWeights | None  # for the compiled roll-out

    def memorise(
        self, token_ids: Tensor, angles: Angles, streams: Tensor, slots: Tensor, kv: KVStorage
    ) -> None:
        """Store keys and values of both attentions; streams [T, layers, D]."""
        x = self.layer.attention_norm(F.embedding(token_ids, self.embedded))
        self.layer.attention.store(x, angles, slots, kv)
        memory = self.cross.memorise(self.layer_attention(streams), angles)
        kv.write(CROSS, slots, torch.nan_to_num_(memory))  # what is multiplied by 0 must leave no trace

    def logits(
        self,
        token_ids: Tensor,
        context: AttentionContext,
        stored: WindowPlan | list[Group],
        target: AttentionContext | None,
    ) -> Tensor:
        """Logits [B, vocabulary] after a drafted token of each sequence.

        `context` and `target`: of its own layer and of the target's last ones; `stored`: over known tokens.
        """
        x = F.embedding(token_ids, self.embedded)
        attended = self.layer.attention(self.layer.attention_norm(x), context)
        crossed = self.cross(x, attended, context.kv.layers[CROSS], stored, context.angles)
        fed = self.layer.feed_forward(self.layer.mlp_norm(x, crossed))
        x = self.output_norm(x, fed)
        if target is not None:
            for layer in self.target_layers:
                x += layer(x, target)
        return self.target.logits(x)


def load_mixture(config: EngineConfig, model: LoadedModel, folder: str) -> MixtureNetwork:
    """The head in `folder` on this target. Raises CheckpointError."""
    shape = read_shape(folder, MixtureShape, model)
    most_tokens = max_model_tokens(config, model)
    _check(folder, shape, model, most_tokens)
    width, decoder = shape.hidden_size, model.decoder
    with torch.inference_mode(), WeightReader(folder) as reader:
        head = HeadReader(reader, shape, model, 2 * width * shape.num_attention_heads * shape.head_dim)
        builder = head.builder
        network = MixtureNetwork(
            embedded=builder.norm("embed_norm.weight")(decoder.embedding.weight.to(model.dtype)),
            layer=builder.layer(0),
            layer_attention=_layer_attention(head, shape),
            cross=_cross_attention(head, shape),
            output_norm=builder.norm("output_norm.weight"),
            rope=head.rope,
            target=decoder,
            target_layers=_last_layers(decoder, shape.target_layers),
            kv_layout=head.kv_layout(2),
            chain=None,
        )
        head.rope.reserve(most_tokens + config.speculative.max_tokens)
    chain = head.chain(network.embedded, network.layer, config)
    if chain is None or shape.target_layers:
        return network
    cross, floats = network.cross, draft_chain.as_floats
    weights = draft_chain.CrossWeights(
        norm=floats(cross.norm.weight),
        query=in_tiles([cross.queries.matrix]),
        gains=floats(cross.query_norm.weight * shape.head_dim**-0.5),
        out=in_tiles([cross.out.matrix]),
    )
    chain = chain._replace(
        cross=weights,
        closing_norm=floats(network.output_norm.weight),
        final_norm=floats(decoder.final_norm.weight),
    )
    return replace(network, chain=chain)


def _check(folder: str, shape: MixtureShape, model: LoadedModel, most_tokens: int) -> None:
    num_layers = model.config.num_layers
    if shape.num_target_layers != num_layers or not 0 <= shape.target_layers < num_layers:
        raise CheckpointError(
            f"{folder} reads {shape.num_target_layers} layers of its target and runs the last "
            f"{shape.target_layers}, but the target has {num_layers}; give the head that was trained for it"
        )
    last = model.decoder.layers[num_layers - shape.target_layers :]
    if not can_run(last):
        raise CheckpointError(
            f"{folder} runs the target's last layers, which have parts that it does not know; choose another "
            "drafter"
        )
    windows = model.config.windows[num_layers - shape.target_layers :]
    if any(window is not None and window < most_tokens for window in windows):
        raise CheckpointError(
            f"{folder} runs the target's last layers, which have a sliding window of "
            f"{min(filter(None, windows))} tokens; lower max_model_tokens, or choose another drafter"
        )


def can_run(layers: list[DecoderLayer]) -> bool:
    """Whether a head may run these last layers of its target: with plain attention, added to the stream."""
    return all(type(layer) is DecoderLayer and type(layer.mixer) is Attention for layer in layers)


def _last_layers(decoder: Decoder, count: int) -> list[DecoderLayer]:
    """The target's last layers, numbered from 0 on."""
    layers: list[DecoderLayer] = []
    for number, layer in enumerate(decoder.layers[len(decoder.layers) - count :]):
        own = layer.attention
        shape = replace(own.shape, layer=number, window=None)
        layers.append(replace(layer, mixer=Attention(shape, own.qkv, own.out, own.qk_norm)))
    return layers


def _layer_attention(head: HeadReader, shape: MixtureShape) -> LayerAttention:
    width, count = shape.hidden_size, shape.layer_attention_heads
    builder, prefix, own = head.builder, "layer_attention", "layer_attention.attention"
    size = count * shape.head_dim
    return LayerAttention(
        stream_norm=builder.norm(f"{prefix}.stream_norm.weight"),
        layer_embed=head.tensor(f"{prefix}.layer_embed", shape.num_target_layers, width),
        qkv=builder.linear({f"{own}.{part}_proj.weight": size for part in "qkv"}, width),
        qk_norm=head.head_norm({f"{own}.{part}_norm.weight": count for part in "qk"}),
        out=builder.linear({f"{own}.o_proj.weight": width}, size),
        output_norm=builder.norm(f"{prefix}.output_norm.weight"),
    )


def _cross_attention(head: HeadReader, shape: MixtureShape) -> CrossAttention:
    width, dim, builder, prefix = shape.hidden_size, shape.head_dim, head.builder, "cross_attn"
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    return CrossAttention(
        keys_values=builder.linear({f"{prefix}.{part}_proj.weight": kv_heads * dim for part in "kv"}, width),
        key_norm=head.head_norm({f"{prefix}.k_norm.weight": kv_heads}),
        norm=builder.norm("cross_attn_layernorm.weight"),
        queries=builder.linear({f"{prefix}.q_proj.weight": heads * dim}, width),
        query_norm=head.head_norm({f"{prefix}.q_norm.weight": heads}),
        out=builder.linear({f"{prefix}.o_proj.weight": width}, heads * dim),
    )


class MixtureDrafter(Drafter):
    """Chains of a MixtureNetwork; also a StepObserver. Keeps nothing of any sequence."""

    name = "mixture_of_attentions"
    is_cheap = False

    def __init__(self, network: MixtureNetwork, target: KVStorage, ahead: Ahead | None = None) -> None:
        """`target`: the target's KV memory. `ahead`: chains do not wait for their device.

        Those of a head that runs layers of the target do, over copies of its pages.
        """
        self.capture = Capture(step_clock(target.layout.device))
        self._network = network
        self._target = target
        self._roll_outs, num_spare = None, 0
        if ahead is not None and not network.target_layers:
            self._spare = Spare(target.num_pages, pages_for(PAGE_TOKENS - 1 + ahead.tokens))
            num_spare = ahead.rows * self._spare.each + 1
            self._roll_outs = RollOuts(ahead, self._begin, target.num_pages + num_spare - 1)
            self._longest = ahead.longest
        self._storage = KVStorage(network.kv_layout, target.num_pages + num_spare)
        self._is_captured = np.zeros(target.num_pages, dtype=bool)  # pages of which all tokens were

    @property
    def wants_layers(self) -> bool:
        """Whether it captures in the next step."""
        return bool(self.capture.sequences) and self.capture.is_on

    def see(self, plan: Plan, step: StepInput, layers: list[Tensor], hidden: Tensor) -> None:
        """Capture the streams of the sequences that may ask for drafts."""
        wanted = self.capture.sequences if self.capture.is_on else set()
        is_wanted = [chunk.sequence in wanted for chunk in plan.chunks]
        self._mark(plan.chunks, is_wanted)
        if any(is_wanted):
            try:
                with self.capture.timed():
                    self._memorise(step, [*layers, hidden], is_wanted)
            except Exception:
                self._is_captured[:] = False  # what was marked may not be there
                raise

    def _mark(self, chunks: list[ScheduledChunk], is_wanted: list[bool]) -> None:
        """Mark pages: those that begin here are captured, unless a later step misses some of their tokens."""
        for chunk, is_captured in zip(chunks, is_wanted, strict=True):
            begin = chunk.start + (-chunk.start % PAGE_TOKENS if is_captured else 0)
            if begin < chunk.end:
                pages = chunk.sequence.pages[begin // PAGE_TOKENS : pages_for(chunk.end)]
                self._is_captured[pages] = is_captured

    def _memorise(self, step: StepInput, layers: list[Tensor], is_wanted: list[bool]) -> None:
        """Make and store keys and values of the tokens of these sequences."""
        (rows,) = upload([np.flatnonzero(np.repeat(is_wanted, step.query_lens))], step.slots.device)
        streams = torch.stack([layer[rows] for layer in layers], dim=1)
        angles = self._network.rope(step.positions[rows], max(step.context_lens))
        self._network.memorise(step.token_ids[rows], angles, streams, step.slots[rows], self._storage)

    def drop_cached(self) -> None:
        """Forget what was captured, and graphs."""
        self._is_captured[:] = False
        if self._roll_outs is not None:
            self._roll_outs.drop()

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        """Chains of greedy tokens; none for sequences whose last two pages were not captured."""
        ready = [i for i, sequence in enumerate(sequences) if self._knows_latest(sequence)]
        if not ready:
            return [[] for _ in sequences]
        found = self._draft([sequences[i] for i in ready], [ks[i] for i in ready])
        drafts = dict(zip(ready, found, strict=True))
        return [drafts.get(i, []) for i in range(len(sequences))]

    def _knows_latest(self, sequence: Sequence) -> bool:
        """Whether the last two pages were captured: after one alone, which may just begin, few are right."""
        last = (sequence.num_computed_tokens - 1) // PAGE_TOKENS
        return bool(self._is_captured[sequence.pages[max(0, last - 1) : last + 1]].all())

    def _draft(self, sequences: list[Sequence], limits: list[int]) -> list[Draft]:
        network = self._network
        if self._roll_outs is not None:
            result = self._rolled_out(self._roll_outs, sequences, max(limits))
            return self._roll_outs.drafts(result, sequences, limits)
        known = [sequence.num_computed_tokens for sequence in sequences]
        pages = [sequence.pages for sequence in sequences]
        if network.chain is not None:
            last = [sequence.tokens[-1:] for sequence in sequences]
            return roll_out_compiled(
                network.chain, self._storage, last, known, pages, limits, is_visible=self._is_captured
            )
        table = page_table(pages, pages_for(max(known)) * PAGE_TOKENS)
        is_stored = np.arange(table.shape[1] * PAGE_TOKENS) < np.array(known)[:, None]
        visible: Bools = is_stored & np.repeat(self._is_captured[table], PAGE_TOKENS, axis=1)
        kv = RolloutKV(self._storage, table, visible, max(limits))
        first_layer = len(self._target.layers) - len(network.target_layers)
        target_kv = RolloutKV(self._target, table, is_stored, max(limits), first_layer)

        def logits(token_ids: Tensor, level: int, seen: Tensor | None) -> Tensor:
            index = torch.tensor([start + level for start in known], device=token_ids.device)
            longest = max(known) + level + 1
            angles = network.rope(index, longest)
            target = None
            if network.target_layers:
                target = target_kv.next(seen, network.target.rope(index, longest))
            own = kv.next(seen, angles)
            return network.logits(token_ids, own, kv.stored(network.embedded.dtype), target)

        def advance(beam: Beam) -> Tensor:
            return logits(beam.tokens, beam.level, beam.is_seen)

        tokens = torch.tensor([s.tokens[-1] for s in sequences], device=network.embedded.device)
        return roll_out(logits(tokens, 0, None), advance, limits)

    def _rolled_out(self, roll_outs: RollOuts, sequences: list[Sequence], depth: int) -> Tensor:
        """Queue it on the device, over the pages that were captured, with all that it needs in one upload."""
        known = [sequence.num_computed_tokens for sequence in sequences]
        full = [s.pages[: end // PAGE_TOKENS] for s, end in zip(sequences, known, strict=True)]
        full = [[page for page in pages if self._is_captured[page]] for pages in full]
        tails = [
            slots_of(s, range(end - end % PAGE_TOKENS, end)) for s, end in zip(sequences, known, strict=True)
        ]
        table, lengths, *moves = self._spare.place(full, tails)
        positions = np.array(known) + np.arange(depth, dtype=np.int32)[:, None]
        tokens = [sequence.tokens[-1] for sequence in sequences]
        arrays, lengths = roll_outs.arrays(tokens, lengths, table, depth, positions.astype(np.int32))
        uploaded = upload([*moves, *arrays], self._storage.layout.device)
        self._storage.move(*uploaded[:2])
        return roll_outs.run(uploaded[2:], lengths)

    def _begin(self, chains: Chains) -> Level:
        network, positions = self._network, iter(chains.others[0])
        stored = chains.stored()

        def level(step: StepInput) -> Tensor:
            angles = network.rope(next(positions), self._longest)
            known = context_of(stored, angles, self._storage).plan.by_window[None]
            return network.logits(step.token_ids, context_of(step, angles, self._storage), known, None)

        return level
