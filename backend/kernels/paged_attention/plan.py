"""What attention gathers and masks: planned once per step, used by every layer.

Sequences with one query token are padded to a common number of pages and attend in one call; to bound the
padding they are split where the longest is over twice the shortest. So are sequences with few query tokens
(drafts to verify), padded to equally many where that costs less than another call. Every other sequence
attends in a call of its own. A draft tree only changes the mask.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend.kernels.paged_attention.tree import TreeShape, hide_branches, tree_shape
from backend.types import PAGE_TOKENS

_MAX_PADDING = 2
"""Sequences of a decode group have at most this many times the pages of the shortest one."""

_MOST_PADDED_QUERIES, _MAX_QUERY_PADDING = 16, 3
"""Sequences with up to this many query tokens are padded to the longest, up to this growth in tokens."""

_FEW_SEQUENCES = 8
"""With more sequences, a second call costs less than padding."""

_MOST_QUERIES = 64
"""Sequences with more query tokens gain nothing from being batched."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that attend in one call: `count` of them with `queries` tokens each."""

    rows: Tensor | slice  # the group's tokens in the step
    count: int
    queries: int
    pages: Tensor | slice  # [count * pages_per_sequence] page numbers; a slice when they are one run
    length: int  # keys per sequence, after trimming the gathered pages
    mask: Tensor | None  # added to the scores, broadcastable to [count, Hq, queries, length]
    is_causal: bool  # the square causal mask, without a tensor
    is_whole_step: bool = False  # `rows` are all tokens of the step, in order


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The plan of all layers with one window. The groups' rows hold each token at least once."""

    groups: list[Group]
    order: Tensor | None  # [T] index of each token's result in the concatenation; None: in order


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One WindowPlan per distinct window; None is full attention."""

    by_window: dict[int | None, WindowPlan]


@dataclass(frozen=True, slots=True)
class _Step:
    query_lens: Sequence[int]
    context_lens: Sequence[int]
    page_table: Tensor
    dtype: torch.dtype
    starts: list[int]  # index of each sequence's first token in the step
    trees: Mapping[int, TreeShape]  # by index of the sequences whose tokens are a draft tree


def plan_attention(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    page_table: Tensor,
    windows: Iterable[int | None],
    dtype: torch.dtype,
    trees: Mapping[int, tuple[int, ...]] | None = None,
) -> AttentionPlan:
    """Plan one step; arguments as in layers.StepInput, `dtype` is that of the masks (the query's).

    `windows` holds each layer's window; a window that all contexts fit in shares the plan of full attention.
    """
    starts, total = [], 0
    for query_len in query_lens:
        starts.append(total)
        total += query_len
    shapes = {i: tree_shape(parents, page_table.device) for i, parents in trees.items()} if trees else {}
    step = _Step(query_lens, context_lens, page_table, dtype, starts, shapes)
    longest = max(context_lens)
    plans: dict[int | None, WindowPlan] = {}
    shared: dict[int | None, WindowPlan] = {}
    for window in set(windows):
        effective = None if window is None or window >= longest else window
        if effective not in shared:
            shared[effective] = _plan_window(step, effective)
        plans[window] = shared[effective]
    return AttentionPlan(plans)


def _plan_window(step: _Step, window: int | None) -> WindowPlan:
    if together := _padded_members(step):
        groups = [_padded_group(step, members, window) for members in _split(step, together, window)]
    else:
        decodes = [i for i, query_len in enumerate(step.query_lens) if query_len == 1]
        groups = [_decode_group(step, members, window) for members in _split(step, decodes, window)]
        together = decodes
    if len(together) < len(step.query_lens):
        groups += _longer_groups(step, window, without=together)
    if len(groups) == 1 and isinstance(groups[0].rows, slice):
        return WindowPlan([replace(groups[0], is_whole_step=True)], None)
    if all(isinstance(group.rows, slice) for group in groups):
        edges = [group.rows for group in groups if isinstance(group.rows, slice)]
        if all(left.stop == right.start for left, right in itertools.pairwise(edges)):
            return WindowPlan(groups, None)
    every = _range(sum(step.query_lens), step.page_table.device)
    rows = torch.cat([every[group.rows] for group in groups])
    # Padding rows are copies of real ones: any of them gives a token's result.
    return WindowPlan(
        groups, torch.empty_like(every).scatter_(0, rows, torch.arange(len(rows), device=rows.device))
    )


def _padded_members(step: _Step) -> list[int]:
    """Sequences to pad to equally many query tokens; [] where that costs more than it saves."""
    members = [i for i, query_len in enumerate(step.query_lens) if query_len <= _MOST_PADDED_QUERIES]
    lens = [step.query_lens[i] for i in members]
    num_calls = len(set(lens))
    if num_calls < 2 or (num_calls == 2 and len(lens) > _FEW_SEQUENCES):
        return []
    if len(lens) * max(lens) > _MAX_QUERY_PADDING * sum(lens):
        return []
    return members


def _longer_groups(step: _Step, window: int | None, without: list[int]) -> list[Group]:
    """Groups of all sequences that are not in `without`, in order of the first of each group."""
    by_length: dict[int, list[int]] = {}
    known = set(without)
    for i, count in enumerate(step.query_lens):
        if i not in known:
            by_length.setdefault(count if count <= _MOST_QUERIES else -i, []).append(i)
    groups: list[Group] = []
    for together in by_length.values():
        for members in _split(step, together, window):
            is_one = len(members) == 1
            groups.append(
                _prefill_group(step, members[0], window) if is_one else _decode_group(step, members, window)
            )
    return groups


def _first_page(step: _Step, index: int, window: int | None) -> int:
    """The first page that any query of the sequence can see."""
    if window is None:
        return 0
    first_query = step.context_lens[index] - step.query_lens[index]
    return max(0, first_query - window + 1) // PAGE_TOKENS


def _num_pages(step: _Step, index: int, window: int | None) -> int:
    return -(-step.context_lens[index] // PAGE_TOKENS) - _first_page(step, index, window)


def _split(step: _Step, decodes: list[int], window: int | None) -> list[list[int]]:
    """Split sequences into groups of similar length; keep their order if one group is enough."""
    if not decodes:
        return []
    pages = {i: _num_pages(step, i, window) for i in decodes}
    if max(pages.values()) <= _MAX_PADDING * min(pages.values()):
        return [decodes]
    groups: list[list[int]] = [[]]
    for i in sorted(decodes, key=pages.__getitem__):
        if groups[-1] and pages[i] > _MAX_PADDING * pages[groups[-1][0]]:
            groups.append([])
        groups[-1].append(i)
    return groups


def _decode_group(step: _Step, members: list[int], window: int | None) -> Group:
    """Sequences with equally many query tokens."""
    lengths, first = _gathered_lengths(step, members, window)
    queries = step.query_lens[members[0]]
    is_run = members == list(range(members[0], members[-1] + 1)) and all(
        step.starts[i] == step.starts[members[0]] + n * queries for n, i in enumerate(members)
    )
    begin = step.starts[members[0]]
    rows: Tensor | slice = slice(begin, begin + len(members) * queries)
    if not is_run:
        rows = _tensor([step.starts[i] + n for i in members for n in range(queries)], step.page_table.device)
    mask = None
    length = max(lengths)
    if min(lengths) != length or window is not None or queries > 1:
        mask = _decode_mask(lengths, queries, window, step, members)
    pages = _gathered_pages(step, members, first, length)
    return Group(rows, len(members), queries, pages, length, mask, is_causal=False)


def _padded_group(step: _Step, members: list[int], window: int | None) -> Group:
    """Sequences with a few query tokens each, padded in front with copies of their first."""
    lengths, first = _gathered_lengths(step, members, window)
    queries = max(step.query_lens[i] for i in members)
    rows = [
        step.starts[i] + max(0, n - queries + step.query_lens[i]) for i in members for n in range(queries)
    ]
    mask = _decode_mask(lengths, queries, window, step, members)
    pages = _gathered_pages(step, members, first, max(lengths))
    rows_ = _tensor(rows, step.page_table.device)
    return Group(rows_, len(members), queries, pages, max(lengths), mask, is_causal=False)


def _gathered_lengths(step: _Step, members: list[int], window: int | None) -> tuple[list[int], list[int]]:
    """How many keys each sequence attends to, and its first page that any of its queries can see."""
    first = [_first_page(step, i, window) for i in members]
    lengths = [step.context_lens[i] - PAGE_TOKENS * page for i, page in zip(members, first, strict=True)]
    return lengths, first


def _gathered_pages(step: _Step, members: list[int], first: list[int], length: int) -> Tensor | slice:
    """The pages of all members' first `length` keys, one sequence after the other."""
    width = -(-length // PAGE_TOKENS)
    device = step.page_table.device
    if members == list(range(members[0], members[-1] + 1)):
        table = step.page_table[members[0] : members[-1] + 1]
    else:
        table = step.page_table[_tensor(members, device)]
    if len(members) == 1:
        return _run_or_pages(table[0, first[0] : first[0] + width])
    if not any(first):
        return table[:, :width].reshape(-1)
    columns = _tensor(first, device)[:, None] + _range(width, device)
    columns = columns.clamp_(max=step.page_table.shape[1] - 1)
    return table.gather(1, columns).reshape(-1)


def _decode_mask(
    lengths: list[int], queries: int, window: int | None, step: _Step, members: list[int]
) -> Tensor:
    """[count, 1, queries, max(lengths)]: the last query has index lengths[b] - 1 among its gathered keys."""
    device = step.page_table.device
    positions = _tensor(lengths, device)[:, None, None] - queries + _range(queries, device)[:, None]
    if any(step.query_lens[i] != queries for i in members):
        first = [length - step.query_lens[i] for i, length in zip(members, lengths, strict=True)]
        positions = torch.maximum(positions, _tensor(first, device)[:, None, None])
    keys = _range(max(lengths), device)
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    if step.trees:
        for own, length, member in zip(hidden, lengths, members, strict=True):
            if member in step.trees:
                hide_branches(own[-step.query_lens[member] :], step.trees[member], length, window)
    return _additive(hidden, step.dtype)[:, None]


def _prefill_group(step: _Step, index: int, window: int | None) -> Group:
    queries, begin = step.query_lens[index], step.starts[index]
    first = _first_page(step, index, window)
    length = step.context_lens[index] - first * PAGE_TOKENS
    width = -(-length // PAGE_TOKENS)
    pages = _run_or_pages(step.page_table[index, first : first + width])
    rows = slice(begin, begin + queries)
    if window is None and queries == length and index not in step.trees:
        return Group(rows, 1, queries, pages, length, None, is_causal=True)
    device = step.page_table.device
    keys = _range(length, device)
    positions = _range(queries, device)[:, None] + (length - queries)
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    if index in step.trees:
        hide_branches(hidden, step.trees[index], length, window)
    return Group(rows, 1, queries, pages, length, _additive(hidden, step.dtype)[None, None], is_causal=False)


def _run_or_pages(pages: Tensor) -> Tensor | slice:
    """A slice if the pages are consecutive, to read them in place; CPU only, as it reads the tensor."""
    if pages.is_cuda:
        return pages
    numbers = pages.tolist()
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return pages


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))


def _tensor(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


@functools.lru_cache(maxsize=8)
def _longest_range(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device)


def _range(size: int, device: torch.device) -> Tensor:
    """0 … size-1, a view of a cached tensor."""
    return _longest_range(1 << (size - 1).bit_length(), device)[:size]
