"""What attention reads: planned once per step, used by every layer, and made when it is first used.

The loop over pages takes sequences in pieces of few query tokens. For torch, sequences with equally many
query tokens are padded to a common number of pages and attend in one call; to bound the padding they are
split where the longest is over twice the shortest. A draft tree only changes what is seen.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from backend.kernels.paged_attention.tree import hide_branches, seen_tokens, tree_shape
from backend.types import PAGE_TOKENS

_MAX_PADDING = 2
"""Sequences of a group have at most this many times the pages of the shortest one."""

_MOST_QUERIES = 64
"""Sequences with more query tokens gain nothing from being batched."""

_MOST_LOOPED, _MOST_LOOPED_NODES = 32, 64
"""Query tokens of a piece for the loop, whose state then stays in the processor's cache, and of a tree."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that attend in one call of torch: `count` of them with `queries` tokens each."""

    rows: Tensor | slice  # the group's tokens in the step
    count: int
    queries: int
    pages: Tensor | slice  # [count * pages_per_sequence] page numbers; a slice when they are one run
    length: int  # keys per sequence, after trimming the gathered pages
    mask: Tensor | None  # added to the scores, broadcastable to [count, Hq, queries, length]
    is_causal: bool  # the square causal mask, without a tensor


@dataclass(frozen=True, slots=True)
class Looped:
    """Pieces of sequences that the loop over pages takes; contiguous int64 on the CPU."""

    sequences: Tensor  # [5, n]: first token, query tokens, context, row of the table, row of `seen`
    seen: Tensor  # [their tokens, 3]: see tree.seen_tokens
    num_slots: int  # the sum of their contexts


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step as the GPU kernel reads it: int32 on the device, and what its grid depends on."""

    query_starts: Tensor  # [B + 1]
    context_lens: Tensor  # [B]
    rows: Tensor  # [B], of the page table
    page_table: Tensor  # [rows, pages], contiguous; any integers, on a CPU int64
    positions: Tensor  # [T]; a tree's branches share them
    ancestors: Tensor | None  # [T, 2] two words of bits: a tree's tokens that each sees; 0: it is in no tree
    order: Tensor  # [B] sequences: chains by their number of query tokens, then trees likewise
    chain_lens: Sequence[int]  # query tokens of the chains in this order
    tree_lens: Sequence[int]  # and of the trees
    longest_context: int


@dataclass(frozen=True)
class Step:
    """The arguments of plan_attention: what the host knows of a step, and the same on the device."""

    query_lens: Sequence[int]
    context_lens: Sequence[int]
    rows: Sequence[int]  # of the page table
    trees: Mapping[int, tuple[int, ...]]  # by index of the sequences whose tokens are a draft tree
    on_device: DeviceStep
    dtype: torch.dtype  # of masks: the query's

    @functools.cached_property
    def starts(self) -> list[int]:
        """Index of each sequence's first token in the step, and the number of all tokens."""
        return list(itertools.accumulate(self.query_lens, initial=0))

    @property
    def page_table(self) -> Tensor:
        """[rows, pages]."""
        return self.on_device.page_table

    def is_looped(self, index: int) -> bool:
        """Whether the loop takes the sequence, on a CPU."""
        return index not in self.trees or self.query_lens[index] <= _MOST_LOOPED_NODES

    def pieces(self, index: int) -> list[tuple[int, int, int, int]]:
        """Its parts for the loop: first token, query tokens, context, row of the table. A tree is one."""
        count, context, start = self.query_lens[index], self.context_lens[index], self.starts[index]
        row = self.rows[index]
        most = count if index in self.trees else _MOST_LOOPED
        return [
            (start + begin, min(most, count - begin), context - max(count - begin - most, 0), row)
            for begin in range(0, count, most)
        ]


@dataclass(frozen=True)
class WindowPlan:
    """The plan of all layers with one window; None is full attention."""

    step: Step
    window: int | None

    @functools.cached_property
    def groups(self) -> list[Group]:
        """All sequences."""
        return _groups(self.step, self.window, list(range(len(self.step.query_lens))))

    @functools.cached_property
    def longer(self) -> list[Group]:
        """The sequences that are not in `looped`."""
        members = [i for i in range(len(self.step.query_lens)) if not self.step.is_looped(i)]
        return _groups(self.step, self.window, members)

    @functools.cached_property
    def looped(self) -> Looped | None:
        """The pieces of all other sequences; None: there are none."""
        step = self.step
        members = [i for i in range(len(step.query_lens)) if step.is_looped(i)]
        if not members:
            return None
        owned = [(i, piece) for i in members for piece in step.pieces(i)]
        pieces = np.array([piece for _, piece in owned]).T
        seen = np.concatenate([seen_tokens(step.trees.get(i, piece[1]), self.window) for i, piece in owned])
        sequences = np.ascontiguousarray(np.vstack((pieces, np.cumsum(pieces[1]) - pieces[1])))
        return Looped(torch.from_numpy(sequences), torch.from_numpy(seen), int(pieces[2].sum()))


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One plan per distinct window: a WindowPlan, or groups that were made otherwise."""

    by_window: Mapping[int | None, WindowPlan | list[Group]]


def plan_attention(
    step: Step, windows: Iterable[int | None], page_table: Tensor | None = None
) -> AttentionPlan:
    """Plan a step for each layer's window; one that all contexts fit in shares the plan of full attention.

    `page_table`: of layers with a window, where it is another.
    """
    if page_table is not None:
        own = replace(step, on_device=replace(step.on_device, page_table=page_table))
        windowed = plan_attention(own, [window for window in windows if window is not None])
        return AttentionPlan({None: WindowPlan(step, None), **windowed.by_window})
    longest = step.on_device.longest_context
    effective = {window: None if window is None or window >= longest else window for window in windows}
    plans = {window: WindowPlan(step, window) for window in set(effective.values())}
    return AttentionPlan({window: plans[own] for window, own in effective.items()})


def _groups(step: Step, window: int | None, members: list[int]) -> list[Group]:
    """Groups of all `members`."""
    by_length: dict[int, list[int]] = {}
    for i in members:
        count = step.query_lens[i]
        by_length.setdefault(count if count <= _MOST_QUERIES else -i, []).append(i)
    return [
        _group(step, own, window) for together in by_length.values() for own in _split(step, together, window)
    ]


def _first_page(step: Step, index: int, window: int | None) -> int:
    """The first page that any query of the sequence can see."""
    if window is None:
        return 0
    first_query = step.context_lens[index] - step.query_lens[index]
    return max(0, first_query - window + 1) // PAGE_TOKENS


def _split(step: Step, together: list[int], window: int | None) -> list[list[int]]:
    """Split sequences into groups of similar length; keep their order if one group is enough."""
    pages = {i: -(-step.context_lens[i] // PAGE_TOKENS) - _first_page(step, i, window) for i in together}
    if max(pages.values()) <= _MAX_PADDING * min(pages.values()):
        return [together]
    groups: list[list[int]] = [[]]
    for i in sorted(together, key=pages.__getitem__):
        if groups[-1] and pages[i] > _MAX_PADDING * pages[groups[-1][0]]:
            groups.append([])
        groups[-1].append(i)
    return groups


def _group(step: Step, members: list[int], window: int | None) -> Group:
    """Sequences with equally many query tokens."""
    first = [_first_page(step, i, window) for i in members]
    lengths = [step.context_lens[i] - PAGE_TOKENS * page for i, page in zip(members, first, strict=True)]
    queries, length = step.query_lens[members[0]], max(lengths)
    numbers = [step.starts[i] + n for i in members for n in range(queries)]
    rows = _run_or_numbers(numbers, step.page_table.device)
    is_causal = len(members) == 1 and queries == length and window is None and members[0] not in step.trees
    mask = None
    if not is_causal and (queries > 1 or window is not None or min(lengths) != length):
        mask = _mask(step, members, lengths, window)
    pages = _pages(step, members, first, length)
    return Group(rows, len(members), queries, pages, length, mask, is_causal)


def _pages(step: Step, members: list[int], first: list[int], length: int) -> Tensor | slice:
    """The pages of all members' first `length` keys, one sequence after the other."""
    width = -(-length // PAGE_TOKENS)
    device = step.page_table.device
    rows = [step.rows[i] for i in members]
    if len(rows) == 1:
        pages = step.page_table[rows[0], first[0] : first[0] + width]
        return pages if pages.is_cuda else _run_or_numbers(pages.tolist(), device)
    table = step.page_table[_tensor(rows, device)]
    if not any(first):
        return table[:, :width].reshape(-1)
    columns = _tensor(first, device)[:, None] + _range(width, device)
    return table.gather(1, columns.clamp_(max=table.shape[1] - 1)).reshape(-1)


def _mask(step: Step, members: list[int], lengths: list[int], window: int | None) -> Tensor:
    """[count, 1, queries, max(lengths)]: the last query has index lengths[b] - 1 among its gathered keys."""
    device = step.page_table.device
    queries = step.query_lens[members[0]]
    positions = _tensor(lengths, device)[:, None, None] - queries + _range(queries, device)[:, None]
    keys = _range(max(lengths), device)
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    for rows, length, member in zip(hidden, lengths, members, strict=True):
        if member in step.trees:
            hide_branches(rows, tree_shape(step.trees[member], device), length, window)
    mask = torch.zeros(hidden.shape, dtype=step.dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None]


def _run_or_numbers(numbers: list[int], device: torch.device) -> Tensor | slice:
    """A slice if the numbers are consecutive, to read in place."""
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return _tensor(numbers, device)


def _tensor(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


@functools.lru_cache(maxsize=8)
def _longest_range(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device)


def _range(size: int, device: torch.device) -> Tensor:
    """0 … size-1, a view of a cached tensor."""
    return _longest_range(1 << (size - 1).bit_length(), device)[:size]
