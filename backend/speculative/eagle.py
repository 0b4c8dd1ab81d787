"""An EAGLE head (arXiv 2401.15077): one layer that continues the target's hidden states.

Slot p fuses the target's state at p, after its final norm, with the embedding of token p + 1, and predicts
the state at p + 1, which proposes token p + 2 and is slot p + 1's own input. Format: pico/drafters/README.md.
Keys and values of a slot depend on its two inputs alone, so that a prefix takes one pass without attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import EngineConfig
from backend.kernels import draft_chain
from backend.kernels.rotary import Angles
from backend.kernels.tiles import in_tiles
from backend.kernels.upload import Array, upload
from backend.kv.manager import pages_for
from backend.kv.storage import KVLayout, KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm
from backend.layers.rope import Rope
from backend.layers.step_input import StepInput
from backend.models.decoder import Decoder, DecoderLayer
from backend.models.loaded import LoadedModel
from backend.models.weights import WeightReader
from backend.speculative import BRANCHES
from backend.speculative.device_chains import Ahead, Chains, Level, RollOuts, Spare, context_of
from backend.speculative.drafter import Drafter
from backend.speculative.heads import (
    HeadReader,
    HiddenStates,
    LayerShape,
    max_model_tokens,
    read_shape,
    slots_of,
)
from backend.speculative.rollout import Beam, RolloutKV, page_table, roll_out, roll_out_compiled
from backend.speculative.tree import TreeBudget
from backend.types import PAGE_TOKENS, Draft, Sequence

CATCH_UP_TOKENS = 2048
"""Slots computed per step for sequences that must catch up."""

_TAIL_TOKENS = 2 * (PAGE_TOKENS - 1)
"""Most slots of a sequence that are in no full page: in its first one, whose first column is none, and in its
last."""


@dataclass(frozen=True, slots=True)
class EagleNetwork:
    """Weights and arithmetic; holds no state of any sequence."""

    fused: Tensor  # [vocabulary, D]: what an embedding adds to the layer's input
    fuse_norm: RMSNorm
    fuse: Linear  # what a state adds to it
    layer: DecoderLayer
    norm: RMSNorm
    rope: Rope
    target: Decoder
    kv_layout: KVLayout
    chain: draft_chain.ChainWeights | None  # for the compiled roll-out

    def inputs(self, token_ids: Tensor, states: Tensor) -> Tensor:
        """Tokens p + 1 [n] and states p [n, D] → what enters the layer."""
        return F.embedding(token_ids, self.fused) + self.fuse(self.fuse_norm(states))

    def next_states(self, token_ids: Tensor, states: Tensor, context: AttentionContext) -> Tensor:
        """Tokens p + 1 [n] and states p [n, D] → states p + 1, after the final norm."""
        x = self.inputs(token_ids, states)
        return self.norm(x, self.layer(x, context))

    def angles(self, positions: list[int]) -> Angles:
        """Rotary angles of slots at these positions."""
        return self.rope(torch.tensor(positions, device=self.fused.device), max(positions) + 1)


def load_eagle(config: EngineConfig, model: LoadedModel, folder: str) -> EagleNetwork:
    """The head in `folder` on this target. Raises CheckpointError."""
    shape = read_shape(folder, LayerShape, model)
    width, decoder = shape.hidden_size, model.decoder
    with torch.inference_mode(), WeightReader(folder) as reader:
        head = HeadReader(reader, shape, model, num_others=width * width)
        builder, fc = head.builder, head.tensor("fc.weight", width, 2 * width)
        # All embeddings go through their norm and their half of `fc` once and for all.
        fused = F.linear(builder.norm("embed_norm.weight")(decoder.embedding.weight.to(fc)), fc[:, :width])
        by_state = fc[:, width:].contiguous()
        fuse_norm, norm = builder.norm("feature_norm.weight"), builder.norm("norm.weight")
        layer = builder.layer(0)
        chain = head.chain(fused, layer, config)
        if chain is not None:
            chain = chain._replace(
                fuse_norm=draft_chain.as_floats(fuse_norm.weight),
                fuse=in_tiles([by_state]),
                closing_norm=draft_chain.as_floats(norm.weight),
            )
        fuse = Linear([by_state], None, head.precision.weights)
        head.rope.reserve(max_model_tokens(config, model) + config.speculative.max_tokens)
    return EagleNetwork(fused, fuse_norm, fuse, layer, norm, head.rope, decoder, head.kv_layout(1), chain)


class EagleDrafter(Drafter):
    """Chains or trees from an EagleNetwork. Slot p has keys and values where token p + 1 has the target's.

    All that they depend on are the tokens up to there: sequences that share a page agree on them.
    """

    name = "eagle"
    is_cheap = False

    def __init__(
        self,
        network: EagleNetwork,
        num_pages: int,
        states: HiddenStates,
        trees: TreeBudget | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        """`num_pages`: the target's. `trees`: None for chains. `ahead`: these do not wait for a device."""
        self._network = network
        self._states = states
        self._trees = trees
        self._roll_outs, num_spare = None, 0
        if ahead is not None and not trees:
            self._spare = Spare(num_pages, pages_for(_TAIL_TOKENS + ahead.tokens))
            num_spare = ahead.rows * self._spare.each + 1
            self._roll_outs = RollOuts(ahead, self._begin, num_pages + num_spare - 1)
        self._storage = KVStorage(network.kv_layout, num_pages + num_spare)
        self._num_stored: dict[Sequence, int] = {}  # slots whose keys and values are stored

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        """Chains of greedy tokens, or trees; nothing for sequences that must catch up first."""
        left, ready = CATCH_UP_TOKENS, []
        for index, sequence in enumerate(sequences):
            begin, last = self._num_stored.get(sequence, 0), sequence.num_computed_tokens - 1
            if last - begin <= left:
                ready.append(index)
            elif left:
                self._store(sequence, begin, begin + left)
            left -= min(left, last - begin)
        if not ready:
            return [[] for _ in sequences]
        found = self._draft([sequences[i] for i in ready], [ks[i] for i in ready])
        drafts = dict(zip(ready, found, strict=True))
        return [drafts.get(i, []) for i in range(len(sequences))]

    def forget(self, sequence: Sequence) -> None:
        """Forget how much of the sequence is stored."""
        self._num_stored.pop(sequence, None)

    def drop_cached(self) -> None:
        """Forget graphs: no sequence is stored."""
        if self._roll_outs is not None:
            self._roll_outs.drop()

    def _draft(self, sequences: list[Sequence], limits: list[int]) -> list[Draft]:
        """Store the missing slots; the last one, whose page may not be there yet, begins the roll-out."""
        network = self._network
        if self._roll_outs is not None:
            result = self._rolled_out(self._roll_outs, sequences, max(limits))
            return self._roll_outs.drafts(result, sequences, limits)
        if network.chain is not None and self._trees is None:
            return self._compiled(network.chain, sequences, limits)
        for sequence in sequences:
            self._store(sequence, self._num_stored.get(sequence, 0), sequence.num_computed_tokens - 1)
        starts = [sequence.num_computed_tokens - 1 for sequence in sequences]
        table = page_table([s.pages for s in sequences], pages_for(max(starts) + 1) * PAGE_TOKENS)
        columns = np.arange(table.shape[1] * PAGE_TOKENS)
        visible = (columns > 0) & (columns <= np.array(starts)[:, None])
        width = BRANCHES if self._trees else 1
        kv = RolloutKV(self._storage, table, visible, 1 + (max(limits) - 1) * width)
        last = [slot for s, start in zip(sequences, starts, strict=True) for slot in slots_of(s, [start])]
        tokens = torch.tensor([sequence.tokens[-1] for sequence in sequences], device=network.fused.device)
        states = network.target.final_norm(self._states.at(torch.tensor(last, device=network.fused.device)))
        states = network.next_states(tokens, states, kv.next(None, network.angles(starts)))

        def advance(beam: Beam) -> Tensor:
            nonlocal states
            angles = network.angles([start + beam.level for start in starts for _ in range(width)])
            context = kv.next(beam.is_seen, angles)
            states = network.next_states(beam.tokens, states[beam.parents], context)
            return network.target.head(states)

        return roll_out(network.target.head(states), advance, limits, self._trees)

    def _compiled(
        self, chain: draft_chain.ChainWeights, sequences: list[Sequence], limits: list[int]
    ) -> list[Draft]:
        """The same in one call."""
        begins = [self._num_stored.get(sequence, 0) for sequence in sequences]
        ends = [sequence.num_computed_tokens for sequence in sequences]
        new = list(zip(sequences, begins, ends, strict=True))
        slots = [slot for sequence, begin, end in new for slot in slots_of(sequence, range(begin, end))]
        self._num_stored.update((sequence, end - 1) for sequence, _, end in new)
        return roll_out_compiled(
            chain,
            self._storage,
            [sequence.tokens[begin + 1 : end + 1] for sequence, begin, end in new],
            [begin + 1 for begin in begins],
            [sequence.pages for sequence in sequences],
            limits,
            states=self._network.target.final_norm(self._states.at(torch.tensor(slots))).numpy(),
            first_column=1,
        )

    def _rolled_out(self, roll_outs: RollOuts, sequences: list[Sequence], depth: int) -> Tensor:
        """Queue it on the device, with all that it needs in one upload."""
        starts = [sequence.num_computed_tokens - 1 for sequence in sequences]
        new = [(s, self._num_stored.get(s, 0), start) for s, start in zip(sequences, starts, strict=True)]
        parts = [_parts(sequence, start) for sequence, _, start in new]
        table, lengths, *moves = self._spare.place(*zip(*parts, strict=True))
        last = [slot for sequence, _, start in new for slot in slots_of(sequence, [start])]
        tokens = [sequence.tokens[-1] for sequence in sequences]
        arrays, lengths = roll_outs.arrays(tokens, lengths, table, depth, np.array(last))
        uploaded = upload([*_new_arrays(new), *moves, *arrays], self._storage.layout.device)
        if len(uploaded[0]):
            self._store_new(uploaded[:4], max(starts))
        self._num_stored.update((sequence, end) for sequence, _, end in new)
        self._storage.move(*uploaded[4:6])
        return roll_outs.run(uploaded[6:], lengths)

    def _begin(self, chains: Chains) -> Level:
        network = self._network
        states = network.target.final_norm(self._states.at(chains.others[0]))

        def level(step: StepInput) -> Tensor:
            nonlocal states
            angles = network.rope(step.positions, chains.longest)
            states = network.next_states(step.token_ids, states, context_of(step, angles, self._storage))
            return network.target.head(states)

        return level

    def _store(self, sequence: Sequence, begin: int, end: int) -> None:
        """Compute keys and values of the slots from `begin` to before `end`."""
        if begin == end:
            return
        arrays = _new_arrays([(sequence, begin, end)])
        self._store_new(upload(arrays, self._storage.layout.device), end)
        self._num_stored[sequence] = end

    def _store_new(self, uploaded: list[Tensor], longest: int) -> None:
        """The same of what _new_arrays returned."""
        network, (tokens, sources, slots, positions) = self._network, uploaded
        states = network.target.final_norm(self._states.at(sources))
        x = network.layer.attention_norm(network.inputs(tokens, states))
        network.layer.attention.store(x, network.rope(positions, longest), slots, self._storage)


def _new_arrays(new: list[tuple[Sequence, int, int]]) -> list[Array]:
    """For the slots from a begin to before an end of each sequence: tokens, where states are, where keys and
    values go, and positions.
    """
    tokens = [token for sequence, begin, end in new for token in sequence.tokens[begin + 1 : end + 1]]
    sources = [slot for sequence, begin, end in new for slot in slots_of(sequence, range(begin, end))]
    slots = [slot for sequence, begin, end in new for slot in slots_of(sequence, range(begin + 1, end + 1))]
    positions = [place for _, begin, end in new for place in range(begin, end)]
    wide = [np.array(each, dtype=np.int64) for each in (tokens, sources, slots)]
    return [*wide, np.array(positions, dtype=np.int32)]


def _parts(sequence: Sequence, start: int) -> tuple[list[int], list[int]]:
    """The pages that slots before `start` fill, but for the first, and the places of all other slots."""
    num_full = max(1, (start + 1) // PAGE_TOKENS)
    tail = [*range(1, min(PAGE_TOKENS, start + 1)), *range(num_full * PAGE_TOKENS, start + 1)]
    return sequence.pages[1:num_full], slots_of(sequence, tail)
