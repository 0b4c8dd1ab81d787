"""Chains on a device that works while the host goes on: of one depth, without waits, over pages in place.

All that a roll-out reads is uploaded at once, and its tokens are downloaded at once. It does not end early:
how many tokens of each chain are likely is counted on the device. Drafted tokens go behind the known ones, to
spare pages of the drafter's own where a sequence has none for them. Trees are rolled out as on a CPU, with
copies and waits (rollout.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.graph_keys import Capture, padded_context, padded_rows
from backend.kernels.paged_attention import DeviceStep, Step, plan_attention
from backend.kernels.rotary import Angles
from backend.kernels.upload import Array
from backend.kv.manager import pages_for
from backend.kv.storage import KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.step_input import Ints, StepInput
from backend.sampling.download import Download
from backend.speculative import MIN_PATH_PROBABILITY
from backend.speculative.late import LateDrafts, needs_values
from backend.types import PAGE_TOKENS, Draft
from backend.types import Sequence as TokenSequence

logger = logging.getLogger(__name__)

_MOST_GRAPHS = 64
"""Most of one drafter: each takes some MiB of a GPU's memory. Roll-outs that would need more are eager."""

Level = Callable[[StepInput], Tensor]
"""Computes one token of each chain: logits [B, vocabulary]."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A device that works while the host goes on, and what its roll-outs have room for."""

    rows: int  # sequences
    tokens: int  # drafted, of each
    longest: int  # context, drafted tokens included
    capture: Capture | None = None  # None: without graphs
    late: LateDrafts | None = None  # None: drafts are read at once


@dataclass(frozen=True, slots=True)
class Chains:
    """What a roll-out of B sequences reads on its device, and what the host knows of that."""

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
        """A token of each chain over the known tokens alone; over one of no meaning where there is none."""
        lens = self.places[0].clamp(min=1)
        return self._step(self.token_ids, self.slots[0], lens, self.places[0], 0)

    def _step(
        self, token_ids: Tensor, slots: Tensor, context_lens: Tensor, places: Tensor, num_more: int
    ) -> StepInput:
        rows, ones = self.starts[:-1], [1] * len(self.lengths)
        on_device = DeviceStep(
            *(self.starts, context_lens, rows, self.page_table, places, None),
            *(rows, ones, [], self.longest),
        )
        contexts = [max(1, length + num_more) for length in self.lengths]
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


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured roll-out, and all that it reads."""

    static: list[Tensor]
    lengths: list[int]  # attention on a CPU plans with them
    result: Tensor
    replay: Callable[[], None]


class RollOuts:
    """The roll-outs of one drafter, as graphs where the device has them.

    A graph is captured when a key comes for the second time: rows and the longest context rounded up, depth.
    """

    def __init__(self, ahead: Ahead, begin: Callable[[Chains], Level], padding_page: int) -> None:
        """`begin`: what its network computes, of chains that begin.

        `padding_page`: what is no sequence's goes there.
        """
        self._begin = begin
        self._longest = ahead.longest
        self._padding_page = padding_page
        self._capture = ahead.capture
        self._late = ahead.late
        self._seen: set[tuple[int, ...]] = set()
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        self._most_graphs = _MOST_GRAPHS

    def drop(self) -> None:
        """Forget all graphs: memory that they read goes away."""
        self._graphs.clear()

    def arrays(
        self, tokens: Sequence[int], lengths: Sequence[int], table: Ints, depth: int, *others: Array
    ) -> tuple[list[Array], list[int]]:
        """What a roll-out reads, to be uploaded (see Chains), and its lengths; with rows that are padding.

        Level l computes a token at place lengths + l of each sequence; `tokens` are the first. The `table`
        [B, P] has pages for all. Rows are the last axis of the `others`.
        """
        longest = max(lengths) + depth
        count, width = len(tokens), pages_for(longest)
        table = table[:, :width]
        if self._capture is not None:
            count, width = padded_rows(count), pages_for(padded_context(longest, self._longest))
        padded = np.full((count, width), self._padding_page)
        padded[: table.shape[0], : table.shape[1]] = table
        owned = np.zeros((2, count), dtype=np.int64)
        owned[:, : len(tokens)] = tokens, lengths
        places = owned[1] + np.arange(depth)[:, None]
        pages = padded[np.arange(count), places // PAGE_TOKENS]
        more = [(0, 0)] * max((other.ndim - 1 for other in others), default=0) + [(0, count - len(tokens))]
        arrays = [
            owned[0],
            pages * PAGE_TOKENS + places % PAGE_TOKENS,
            padded,
            places.astype(np.int32),
            (places + 1).astype(np.int32),
            np.arange(count + 1, dtype=np.int32),
            *(np.pad(other, more[-other.ndim :]) for other in others),
        ]
        return arrays, owned[1].tolist()

    def run(self, uploaded: list[Tensor], lengths: list[int]) -> Tensor:
        """Queue a roll-out of what `arrays` returned; its result is that of roll_out_chains."""
        slots, table = uploaded[1:3]
        key = (*table.shape, len(slots))
        graph = self._graphs.get(key)
        may_capture = key in self._seen and len(self._graphs) < self._most_graphs
        if graph is None and self._capture is not None and may_capture:
            graph = self._captured(self._capture, [each.clone() for each in uploaded], list(lengths))
        self._seen.add(key)
        if graph is None:
            return self._roll_out(uploaded, lengths, max(lengths) + len(slots))
        self._graphs[key] = graph
        for static, own in zip(graph.static, uploaded, strict=True):
            static.copy_(own)
        graph.lengths[:] = lengths
        graph.replay()
        return graph.result.clone()  # graphs share their memory

    def drafts(self, result: Tensor, sequences: Iterable[TokenSequence], limits: list[int]) -> list[Draft]:
        """The chains of a roll-out of these sequences: late ones of these lengths, or its likely tokens."""
        if self._late is not None and not any(map(needs_values, sequences)):
            return self._late.add(result, limits)
        ((*rows, counts),) = Download([result]).read()
        chains = list(zip(*rows, strict=True))
        return [list(chains[i][: min(counts[i], limit)]) for i, limit in enumerate(limits)]

    def _captured(self, capture: Capture, static: list[Tensor], lengths: list[int]) -> _Graph | None:
        """The graph of a roll-out; None, for good, where it cannot be captured.

        Where memory is short for it, graphs that are there go on.
        """
        longest = min(static[2].shape[1] * PAGE_TOKENS, self._longest)
        try:
            result, replay = capture(lambda: self._roll_out(static, lengths, longest))
        except torch.OutOfMemoryError as error:
            logger.warning("%d CUDA graphs of drafts are all that memory holds: %s", len(self._graphs), error)
            self._most_graphs = len(self._graphs)
            return None
        except RuntimeError as error:
            logger.warning("drafts are rolled out without CUDA graphs, as one cannot be captured: %s", error)
            self._capture = None
            self._graphs.clear()
            return None
        return _Graph(static, lengths, result, replay)

    def _roll_out(self, uploaded: list[Tensor], lengths: list[int], longest: int) -> Tensor:
        token_ids, slots, table, places, context_lens, starts, *others = uploaded
        chains = Chains(token_ids, slots, table, places, context_lens, starts, others, lengths, longest)
        return roll_out_chains(chains, self._begin(chains))


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
