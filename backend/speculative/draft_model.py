"""Drafts of a small model of its own, with its own keys and values, pages and prefix tree.

It reads what the target has written since the last round, then its own drafts, all sequences in one pass per
token. Keys and values of drafts stay where they were accepted. A sequence that is new here, or was preempted,
catches up first: with prefix hits in the drafter's own tree, then by computing, a part in each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend.kv.manager import KVManager, pages_for
from backend.kv.storage import KVStorage
from backend.speculative.base import LEAST_REACHED
from backend.speculative.draft_network import DraftNetwork
from backend.speculative.round_kv import Ints, RoundKV, RoundShape, gather, page_table, slots_of
from backend.speculative.round_layer import Angles
from backend.types import PAGE_TOKENS, Sequence

MOST_BEGINS = 8
"""Tokens that a sequence may bring to a round; who is further behind catches up before."""

CATCH_UP_TOKENS = 512
"""Computed per step for sequences that are behind: nobody else waits longer for them."""


@dataclass(slots=True)
class _Mirror:
    """A sequence as the drafter has it."""

    own: Sequence  # the same tokens, the drafter's own pages
    written: list[int] = field(default_factory=list)  # tokens computed behind what counts, maybe rejected


class DraftModelDrafter:
    """Chains of greedy tokens from a DraftNetwork."""

    name = "draft_model"
    is_cheap = False

    def __init__(self, network: DraftNetwork, num_pages: int, *, prefix_cache: bool = True) -> None:
        self.kv = KVManager(num_pages, revision="", kv_dtype="", prefix_cache=prefix_cache)
        self._network = network
        self._storage = KVStorage(network.kv_layout, num_pages + 1)
        self._trash = num_pages * PAGE_TOKENS  # slot of the page that nobody owns: padding goes there
        self._mirrors: dict[Sequence, _Mirror] = {}

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """See Drafter."""
        longest = max(ks)
        left = CATCH_UP_TOKENS
        drafts: list[list[int]] = [[] for _ in sequences]
        ready: list[int] = []
        for index, sequence in enumerate(sequences):
            mirror = self._mirror(sequence)
            own = mirror.own
            if own.num_uncomputed_tokens > MOST_BEGINS and left > 0:
                left -= self._catch_up(own, left)
            end = len(own.tokens) + longest - 1
            if own.num_uncomputed_tokens > MOST_BEGINS or end > self._network.config.max_position_tokens:
                continue
            if self.kv.grow(own, end) == end:
                ready.append(index)
        if ready:
            mirrors = [self._mirrors[sequences[index]] for index in ready]
            for index, mirror, draft in zip(ready, mirrors, self._round(mirrors, longest), strict=True):
                mirror.written = mirror.own.tokens[mirror.own.num_computed_tokens :] + draft[:-1]
                drafts[index] = draft[: ks[index]]
        return drafts

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Its tokens say so when it is asked next."""

    def forget(self, sequence: Sequence) -> None:
        """See Drafter."""
        mirror = self._mirrors.pop(sequence, None)
        if mirror is not None:
            self.kv.release(mirror.own)

    def _mirror(self, sequence: Sequence) -> _Mirror:
        """What is kept of the sequence, with what was accepted counted as computed."""
        mirror = self._mirrors.get(sequence)
        if mirror is None:
            own = Sequence(sequence.request, sequence.tokens, sequence.num_prompt_tokens)
            self.kv.attach(own, self.kv.match(own))
            mirror = self._mirrors[sequence] = _Mirror(own)
        elif mirror.written:
            own = mirror.own
            begin = own.num_computed_tokens
            kept, limit = 0, min(len(mirror.written), len(own.tokens) - 1 - begin)
            while kept < limit and mirror.written[kept] == own.tokens[begin + kept]:
                kept += 1
            self.kv.advance(own, kept)
            mirror.written = []
        return mirror

    def _catch_up(self, own: Sequence, limit: int) -> int:
        """Compute at most `limit` tokens of those before the last; how many were."""
        begin = own.num_computed_tokens
        count = self.kv.grow(own, begin + min(limit, own.num_uncomputed_tokens - 1)) - begin
        if count > 0:
            self._compute([own], RoundShape([begin], [count], 0))
            self.kv.advance(own, count)
        return max(count, 0)

    def _round(self, mirrors: list[_Mirror], num_tokens: int) -> list[list[int]]:
        """So many tokens for each."""
        owns = [mirror.own for mirror in mirrors]
        known = [own.num_computed_tokens for own in owns]
        begins = [own.num_uncomputed_tokens for own in owns]
        return self._compute(owns, RoundShape(known, begins, num_tokens - 1)).tolist()

    def _compute(self, owns: list[Sequence], shape: RoundShape) -> Tensor:
        """Compute what a round begins with and drafts; the drafts [B, at most num_drafted + 1]."""
        network, storage = self._network, self._storage
        count, width = len(owns), shape.width
        positions = shape.positions()
        device = storage.layout.device
        table = page_table([own.pages for own in owns], int(positions.max()) + 1)
        pages = torch.from_numpy(table[:, : pages_for(shape.longest)].reshape(-1)).to(device)
        dtype = network.embedding.dtype
        kv = [gather(layer, pages, shape, dtype) for layer in storage.layers]
        first_mask, later_mask = shape.masks(dtype, device)
        steps = self._angles(positions, width)
        ids = [
            [0] * (width - begins) + own.tokens[known : known + begins]
            for own, known, begins in zip(owns, shape.known, shape.begins, strict=True)
        ]
        first = torch.tensor(ids, device=device).view(-1)
        hidden = network.forward(first, kv, shape.longest, steps[0], first_mask)
        if width > 1:
            hidden = hidden.view(count, width, -1)[:, -1]
        tokens, reached = network.best(hidden)
        drafts = [tokens]
        for number, angles in enumerate(steps[1:]):
            if reached.max().item() < LEAST_REACHED:
                break
            column = shape.longest + width + number
            mask = None if later_mask is None else later_mask[..., : column + 1]
            tokens, likely = network.best(network.forward(tokens, kv, column, angles, mask))
            drafts.append(tokens)
            reached = reached * likely
        computed = width + len(drafts) - 1
        slots = slots_of(table, positions[:, :computed], self._trash).reshape(-1)
        self._keep(kv, shape.longest, torch.from_numpy(slots).to(device))
        return torch.stack(drafts, dim=1)

    def _angles(self, positions: Ints, width: int) -> list[tuple[Angles, ...]]:
        """For each pass of a round, by layer; `positions` [B, width + passes after the first]."""
        count = len(positions)
        # In the order of use: sequence by sequence first, then pass by pass.
        ordered = torch.cat(
            [
                torch.from_numpy(positions[:, :width]).reshape(-1),
                torch.from_numpy(positions[:, width:]).mT.reshape(-1),
            ]
        ).clamp_(min=0)
        found = self._network.angles(ordered.to(self._storage.layout.device), int(positions.max()) + 1)
        return list(zip(*(layer.passes(count * width, count) for layer in found), strict=True))

    def _keep(self, kv: list[RoundKV], start: int, slots: Tensor) -> None:
        """Store the columns from `start` on."""
        for layer, own in enumerate(kv):
            found = own.data[:, start : start + len(slots) // len(own.data)]
            self._storage.write(layer, slots, found.reshape(len(slots), -1, found.shape[-1]))
