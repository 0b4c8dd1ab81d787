"""What one forward pass computes: a ragged batch of sequences over paged KV memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.lora import AdapterRows
from backend.kernels.paged_attention import DeviceStep, ancestor_words
from backend.kernels.upload import upload
from backend.types import PAGE_TOKENS, tree_depths

Words = NDArray[np.int32]
Ints = NDArray[np.int64]
Trees = Mapping[int, tuple[int, ...]]
"""By index of the sequences whose tokens are a draft tree: parents of all of them but the first."""


class WindowedPages(NamedTuple):
    """Where layers with a window have keys and values, if they have pages of their own."""

    slots: Tensor  # [T], as StepInput's
    page_table: Tensor  # as DeviceStep's


@dataclass(frozen=True, slots=True)
class StepInput:
    """T tokens of B sequences, concatenated in the order of Plan.chunks: decodes first, then prefill chunks.

    Tensors are on the model's device. Sequence b owns `query_lens[b]` consecutive tokens, the last of which
    has position `context_lens[b] - 1`. The tokens of a draft tree have consecutive slots in KV memory as
    well, but their positions follow their depth, and they only see their ancestors.
    """

    token_ids: Tensor  # [T] int32
    slots: Tensor  # [T] int64: page * PAGE_TOKENS + offset, where the token's key and value go
    on_device: DeviceStep
    query_lens: list[int]  # [B] tokens computed in this step
    context_lens: list[int]  # [B] tokens in KV memory after this step
    rows: list[int]  # [B] of the page table
    adapters: AdapterRows | None = None  # of the T tokens; None: none uses one
    trees: Trees = field(default_factory=dict)
    states: Sequence[int] = ()  # [B] slots of recurrent states; empty: `rows`
    windowed: WindowedPages | None = None  # None: layers with a window have the pages of the others

    def __post_init__(self) -> None:
        assert self.token_ids.shape == self.slots.shape == self.positions.shape
        assert len(self.query_lens) == len(self.context_lens) == len(self.rows)
        assert self.slots.dtype == torch.int64

    @property
    def positions(self) -> Tensor:
        """[T] int32, from 0 within the sequence."""
        return self.on_device.positions


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a step's tokens are, in NumPy."""

    starts: Words  # [B + 1] index of each sequence's first token, and T
    owners: Ints  # [T] each token's sequence
    places: Ints  # [T] its number in the sequence: where it is in KV memory
    positions: Words  # [T] the same but in trees, where it is the depth that counts
    context_lens: Words  # [B]
    ancestors: Words  # [T, 2], see DeviceStep; [0, 2] without trees
    order: Words  # [B], see DeviceStep
    chain_lens: list[int]
    tree_lens: list[int]


def lay_out(query_lens: Sequence[int], context_lens: Sequence[int], trees: Trees) -> Layout:
    """The layout of sequences with these lengths."""
    lengths, contexts = np.array(query_lens, dtype=np.int64), np.array(context_lens, dtype=np.int32)
    starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    owners = np.repeat(np.arange(len(lengths)), lengths)
    begins = contexts - lengths
    places = (begins - starts[:-1])[owners] + np.arange(len(owners))
    positions = places.astype(np.int32)
    for b, parents in trees.items():
        positions[starts[b] + 1 : starts[b + 1]] = begins[b] + np.array(tree_depths(parents))
    words = ancestor_words(len(owners) if trees else 0, starts, trees)
    is_tree = np.zeros(len(lengths), dtype=np.bool_)
    is_tree[list(trees)] = True
    order, num_chains = np.lexsort((lengths, is_tree)), len(lengths) - len(trees)
    ordered = lengths[order].tolist()
    lens = ordered[:num_chains], ordered[num_chains:]
    return Layout(starts, owners, places, positions, contexts, words, order.astype(np.int32), *lens)


def step_of_tables(
    token_ids: Tensor | Ints,
    query_lens: list[int],
    context_lens: list[int],
    page_table: Ints,
    device: torch.device,
    trees: Trees | None = None,
) -> StepInput:
    """The step of sequences whose pages are the rows of `page_table` [B, P].

    One upload, unless tokens are a tensor.
    """
    layout = lay_out(query_lens, context_lens, trees or {})
    pages = page_table[layout.owners, layout.places // PAGE_TOKENS]
    rows = np.arange(len(query_lens), dtype=np.int32)
    arrays = (
        pages * PAGE_TOKENS + layout.places % PAGE_TOKENS,
        np.ascontiguousarray(page_table),
        layout.starts,
        layout.context_lens,
        rows,
        layout.positions,
        layout.ancestors,
        layout.order,
    )
    more = [token_ids] if isinstance(token_ids, np.ndarray) else []
    uploaded = upload([*arrays, *more], device)
    slots, table, starts, contexts, table_rows, positions, words, order, *ids = uploaded
    own = positions, words if trees else None, order, layout.chain_lens, layout.tree_lens, max(context_lens)
    on_device = DeviceStep(starts, contexts, table_rows, table, *own)
    if isinstance(token_ids, Tensor):
        ids = [token_ids.to(device)]
    return StepInput(ids[0], slots, on_device, query_lens, context_lens, rows.tolist(), trees=trees or {})
