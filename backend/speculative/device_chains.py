"""Chains on a device that works while the host goes on: of one depth, without waits, over pages in place.

All that a roll-out reads is uploaded at once, and its tokens are downloaded at once. It does not end early:
how many tokens of each chain are likely is counted on the device. Drafted tokens go behind the known ones, to
spare pages of the drafter's own where a sequence has none for them. Trees are rolled out as on a CPU, with
copies and waits (rollout.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.paged_attention import DeviceStep, Step, plan_attention
from backend.kernels.rotary import Angles
from backend.kernels.upload import Array
from backend.kv.storage import KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.step_input import Ints, StepInput
from backend.sampling.download import Download
from backend.speculative import MIN_PATH_PROBABILITY
from backend.types import PAGE_TOKENS, Draft

Level = Callable[[StepInput], Tensor]
"""Computes one token of each chain: logits [B, vocabulary]."""


def chain_arrays(
    tokens: Sequence[int], lengths: Sequence[int], table: Ints, depth: int, others: Sequence[Array] = ()
) -> list[Array]:
    """What a roll-out of B chains reads, to be uploaded: see Chains.

    Level l computes a token at place lengths + l of each sequence; `tokens` are the first. The `table` [B, P]
    has pages for all.
    """
    places = np.array(lengths) + np.arange(depth)[:, None]
    pages = table[np.arange(len(lengths)), places // PAGE_TOKENS]
    return [
        np.array(tokens, dtype=np.int64),
        pages * PAGE_TOKENS + places % PAGE_TOKENS,
        np.ascontiguousarray(table),
        places.astype(np.int32),
        (places + 1).astype(np.int32),
        np.arange(len(lengths) + 1, dtype=np.int32),
        *others,
    ]


@dataclass(frozen=True, slots=True)
class Chains:
    """The arrays on the device, and what the host knows of them."""

    token_ids: Tensor  # [B]
    slots: Tensor  # [depth, B], where keys and values go
    page_table: Tensor  # [B, P]
    places: Tensor  # [depth, B]
    context_lens: Tensor  # [depth, B]
    starts: Tensor  # 0 … B
    others: list[Tensor]  # of the drafter's own
    lengths: list[int]  # [B] tokens known
    longest: int  # no context is longer

    def step(self, level: int, token_ids: Tensor) -> StepInput:
        """The tokens of a level."""
        return self._step(
            token_ids, self.slots[level], self.context_lens[level], self.places[level], 1 + level
        )

    def stored(self) -> StepInput:
        """A token of each chain over the known tokens alone."""
        return self._step(self.token_ids, self.slots[0], self.places[0], self.places[0], 0)

    def _step(
        self, token_ids: Tensor, slots: Tensor, context_lens: Tensor, places: Tensor, num_more: int
    ) -> StepInput:
        rows, ones = self.starts[:-1], [1] * len(self.lengths)
        on_device = DeviceStep(
            *(self.starts, context_lens, rows, self.page_table, places, None),
            *(rows, ones, [], self.longest),
        )
        contexts = [length + num_more for length in self.lengths]
        return StepInput(token_ids, slots, on_device, ones, contexts, list(range(len(ones))))


def context_of(step: StepInput, angles: Angles, kv: KVStorage) -> AttentionContext:
    """Full attention of a step in a layer without adapters."""
    own = Step(step.query_lens, step.context_lens, step.rows, {}, step.on_device, angles.table.dtype)
    return AttentionContext(plan_attention(own, [None]), angles, {None: step.slots}, kv)


def roll_out_chains(chains: Chains, level: Level) -> Tensor:
    """The most likely tokens by depth, and how many of each chain are worth verifying: [depth + 1, B] int64.

    As in rollout.roll_out a chain ends with the token that makes its path less likely than
    MIN_PATH_PROBABILITY; what is not finite ends it too.
    """
    token_ids, reached, rows = chains.token_ids, None, []
    count = torch.ones_like(token_ids)
    for number in range(len(chains.slots)):
        if reached is not None:
            count += reached.exp() >= MIN_PATH_PROBABILITY
        best = F.log_softmax(level(chains.step(number, token_ids)).float(), dim=-1).max(dim=-1)
        found = best.values.clamp_(max=0.0)  # rounding must not let a path gain by growing
        reached, token_ids = found if reached is None else reached + found, best.indices
        rows.append(token_ids)
    return torch.stack([*rows, count])


class RollOuts:
    """The roll-outs of one drafter."""

    def __init__(self, begin: Callable[[Chains], Level]) -> None:
        """`begin`: what its network computes, of chains that begin."""
        self._begin = begin

    def run(self, uploaded: list[Tensor], lengths: list[int]) -> Tensor:
        """Queue a roll-out; its result is that of roll_out_chains."""
        token_ids, slots, table, places, context_lens, starts, *others = uploaded
        longest = max(lengths) + len(slots)
        chains = Chains(token_ids, slots, table, places, context_lens, starts, others, lengths, longest)
        return roll_out_chains(chains, self._begin(chains))


def read_chains(result: Tensor, limits: list[int]) -> list[Draft]:
    """Wait for a roll-out: its likely tokens, at most `limits`."""
    ((*rows, counts),) = Download([result]).read()
    chains = zip(*rows, strict=True)
    return [
        list(chain[: min(count, limit)])
        for chain, count, limit in zip(chains, counts[: len(limits)], limits, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class Spare:
    """Pages behind the others of a storage, which no sequence owns: some for each row of a roll-out."""

    first: int
    each: int  # of a row

    def place(
        self, full: Sequence[Sequence[int]], tails: Sequence[Sequence[int]]
    ) -> tuple[Ints, list[int], Ints, Ints]:
        """Sequences of `full` pages, behind which copies of the slots `tails` go to spare pages.

        Returns their page table and lengths, and the slots to be copied from and to.
        """
        own = self.first + np.arange(len(full) * self.each).reshape(len(full), self.each)
        table = np.zeros((len(full), max(map(len, full)) + self.each), dtype=np.int64)
        targets: list[int] = []
        for row, pages, spare, tail in zip(table, full, own, tails, strict=True):
            row[: len(pages)] = pages
            row[len(pages) : len(pages) + self.each] = spare
            targets += range(spare[0] * PAGE_TOKENS, spare[0] * PAGE_TOKENS + len(tail))
        lengths = [len(pages) * PAGE_TOKENS + len(tail) for pages, tail in zip(full, tails, strict=True)]
        sources = [slot for tail in tails for slot in tail]
        return table, lengths, np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)
