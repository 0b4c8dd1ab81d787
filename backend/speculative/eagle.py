"""An EAGLE head (arXiv 2401.15077): one layer that continues the target's hidden states.

Slot p fuses the target's state at p, after its final norm, with the embedding of token p + 1, and predicts
the state at p + 1, which proposes token p + 2 and is slot p + 1's own input. Format: pico/drafters/README.md.
Keys and values of a slot depend on nothing but its two inputs, so that any prefix is quickly made good.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from backend.kv.manager import pages_for
from backend.kv.storage import KVStorage
from backend.speculative import BRANCHES, MIN_PATH_PROBABILITY
from backend.speculative.eagle_network import EagleNetwork
from backend.speculative.eagle_tree import TreeRound
from backend.speculative.hidden_states import HiddenStates, slots_in
from backend.speculative.round_kv import RoundShape, gather, page_table
from backend.speculative.tree import TreeBudget
from backend.types import PAGE_TOKENS, Draft, Sequence

CATCH_UP_TOKENS = 2048
"""Slots made good per step; who has more to make good waits."""


@dataclass(slots=True)
class _Slots:
    """Slots of some sequences, to be computed in one pass."""

    tokens: list[int] = field(default_factory=list)  # behind each
    positions: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)  # where the target's states lie
    kept_at: list[int] = field(default_factory=list)  # where their keys and values go: those of the first

    def add(self, sequence: Sequence, begin: int, end: int) -> None:
        """Slots from `begin` to `end`, `end` not included."""
        places = range(begin, end)
        self.tokens += sequence.tokens[begin + 1 : end + 1]
        self.positions += places
        self.states += slots_in(sequence, places)


class EagleDrafter:
    """Chains or trees from an EagleNetwork. Slot p has keys and values where token p + 1 has the target's.

    All that they depend on are the tokens up to there: sequences that share a page agree on them.
    """

    name = "eagle"
    is_cheap = False

    def __init__(
        self,
        network: EagleNetwork,
        storage: KVStorage,
        states: HiddenStates,
        trees: TreeBudget | None = None,
    ) -> None:
        """`storage`: by `network.kv_layout`, with as many pages as the target's. `trees`: None for chains."""
        self._network = network
        self._storage = storage
        self._states = states
        self._trees = trees
        self._good: dict[Sequence, int] = {}  # slots whose keys and values are there

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        """See Drafter."""
        drafts: list[Draft] = [[] for _ in sequences]
        slots, ready = self._missing(sequences)
        if slots.positions:
            owners = [sequences[index] for index in ready]
            found = self._round(slots, owners, [ks[index] for index in ready])
            for index, draft in zip(ready, found, strict=True):
                drafts[index] = draft
        return drafts

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Its tokens say so when it is asked next."""

    def forget(self, sequence: Sequence) -> None:
        """See Drafter."""
        self._good.pop(sequence, None)

    def _missing(self, sequences: list[Sequence]) -> tuple[_Slots, list[int]]:
        """Slots without keys and values, and who then has them all; behind these the last of each of those.

        The last slot's are not kept: the page for its token + 1 may not be there yet.
        """
        slots = _Slots()
        ready: list[int] = []
        left = CATCH_UP_TOKENS
        for index, sequence in enumerate(sequences):
            last = sequence.num_computed_tokens - 1
            begin = self._good.get(sequence, 0)
            end = min(last, begin + left)
            left -= end - begin
            if end > begin:
                slots.add(sequence, begin, end)
                slots.kept_at += slots_in(sequence, range(begin + 1, end + 1))
                self._good[sequence] = end
            if end == last:
                ready.append(index)
        for index in ready:
            last = sequences[index].num_computed_tokens - 1
            slots.add(sequences[index], last, last + 1)
        return slots, ready

    def _round(self, slots: _Slots, owners: list[Sequence], ks: list[int]) -> list[Draft]:
        """Compute the slots; a draft for each of the owners of the last, at most so many tokens deep."""
        network = self._network
        count, kept = len(owners), len(slots.kept_at)
        device = network.fused.device
        starts = slots.positions[kept:]
        num_tokens = max(ks, default=0)
        steps = range(1, num_tokens if self._trees is None else 0)
        later = [start + step for step in steps for start in starts]
        passes = network.angles(slots.positions + later).passes(len(slots.positions), count)
        features = network.target_norm(self._states.at(slots.states))
        x = network.inputs(torch.tensor(slots.tokens, device=device), features)
        heads = network.attention.project(x, passes[0])
        if kept:
            kv_heads = heads[:kept, network.attention.heads.num_heads :]
            self._storage.write(0, torch.tensor(slots.kept_at, device=device), kv_heads)
        if not owners:
            return []
        shape = RoundShape(starts, [1] * count, (num_tokens - 1) * (BRANCHES if self._trees else 1))
        pages = page_table([owner.pages for owner in owners], pages_for(shape.longest + 1) * PAGE_TOKENS)
        kv = gather(
            self._storage.layers[0], torch.from_numpy(pages.reshape(-1)).to(device), shape, x.dtype, skipped=1
        )
        mask, later_mask = shape.masks(x.dtype, device)
        x = x[kept:]
        x += network.attention.mix(heads[kept:], kv, shape.longest, mask)
        if self._trees is not None:
            round_ = TreeRound(network, kv, shape.longest + 1, later_mask, starts)
            return round_.grow(network.predicted(x), ks, self._trees)
        features = network.predicted(x)
        tokens, reached = network.best(features)
        drafts = [tokens]
        for column, turned in enumerate(passes[1:], start=shape.longest + 1):
            if reached.max().item() < MIN_PATH_PROBABILITY:
                break
            x = network.inputs(drafts[-1], features)
            mask = None if later_mask is None else later_mask[..., : column + 1]
            x += network.attention(x, kv, column, turned, mask)
            features = network.predicted(x)
            tokens, likely = network.best(features)
            drafts.append(tokens)
            reached = reached * likely
        found: list[list[int]] = torch.stack(drafts, dim=1).tolist()
        return [draft[:k] for draft, k in zip(found, ks, strict=True)]
