"""Plan → StepInput: one pass over the chunks for their tokens, NumPy for the rest, one upload.

All that a step reads on its device is one block of int32; slots take two words each, as torch copies to no
other index than int64.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backend.engine.page_table import PageTable
from backend.engine.state import StateTable
from backend.kernels.device import has_triton
from backend.kernels.lora import AdapterRows, DeviceSlots
from backend.kernels.paged_attention import DeviceStep
from backend.kernels.upload import Array, upload
from backend.layers.step_input import Layout, StepInput, WindowedPages, Words, lay_out
from backend.sampling.logits import Ints
from backend.sampling.sampler import SamplingBatch
from backend.speculative.tree import paths
from backend.types import Plan, ScheduledChunk, tree_depths

_PENDING = -1
"""In the place of a token that is a row's last draw, which the host does not know yet."""

_NO_WORDS = np.empty(0, dtype=np.int32)


class Draws(NamedTuple):
    """A step's N draws: one per sampled chunk and one more per draft token; a chunk's own are consecutive."""

    sampled: list[ScheduledChunk]  # the R chunks whose logits give a token, in plan order
    rows: Ints  # [N] state-table rows
    token_index: Ints  # [N] index, among the step's T tokens, of the token before each draw
    positions: Ints  # [N] positions of the tokens to draw


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step that is ready to run, and where to find its results."""

    step_input: StepInput
    # Of its draws, see Draws.
    sampled: list[ScheduledChunk]
    rows: Ints
    token_index: Ints
    positions: Ints
    drawn_after: Tensor  # [N] `token_index` on the device
    drawn_rows: Tensor | None  # [N] `rows` on the device, if last draws are kept there
    sampling: SamplingBatch  # of the draws
    sampling_words: Tensor | None  # [N, 8] the same on a GPU, see SamplingBatch.words
    offsets: list[int]  # [B] index of each chunk's first token
    has_drafts: bool  # False: N = R
    late: list[int]  # roll-outs of which it verifies late drafts

    @property
    def has_trees(self) -> bool:
        """Whether any draft is a tree."""
        return bool(self.step_input.trees)

    def drafts_before(self) -> list[tuple[int, ...]]:
        """For each of the N draws, the draft tokens before it on its path."""
        before: list[tuple[int, ...]] = []
        for chunk in self.sampled:
            if chunk.parents:
                before += [(), *paths(chunk.draft, chunk.parents)]
            else:
                before += [chunk.draft[:i] for i in range(len(chunk.draft) + 1)]
        return before


def prepare(plan: Plan, table: StateTable, device: torch.device) -> PreparedStep:
    """Bind rows, and build the input of the forward pass on `device`."""
    chunks = plan.chunks
    rows = table.bind(chunks)
    token_ids = _token_ids(chunks)
    query_lens = [chunk.num_tokens for chunk in chunks]
    context_lens = [chunk.end for chunk in chunks]
    trees = {b: chunk.parents for b, chunk in enumerate(chunks) if chunk.parents} if plan.num_drafts else {}
    layout = lay_out(query_lens, context_lens, trees)
    draws = _draws(plan, rows, layout)
    sampling, pages = table.sampling(draws.rows, draws.positions), table.page_table
    adapter_slots = _adapter_slots(table, rows, layout)
    windows, places = table.window_table, (rows[layout.owners], layout.places)
    late_numbers, *found = table.late.find(token_ids)
    arrays: list[Array] = [
        pages.slots(*places),
        token_ids,
        layout.positions,
        layout.starts,
        layout.context_lens,
        rows.astype(np.int32),
        layout.ancestors,
        layout.order,
        draws.token_index.astype(np.int32),
        *found,
    ]
    if table.last_draws is not None:
        pending = np.flatnonzero(token_ids == _PENDING)
        arrays += [draws.rows, pending, rows[layout.owners[pending]]]
    if windows is not None:
        arrays += [windows.slots(*places), windows.changes()]
    if has_triton(device):  # what kernels in Triton alone read
        arrays += [pages.changes(), sampling.words(), *_slot_words(adapter_slots)]
    uploaded = upload(arrays, device)
    slots, ids, positions, starts, contexts, own_rows, bits, order, drawn_after, *others = uploaded
    table.late.put(ids, late_numbers, *others[:2])
    drawn_rows, others = _take_pending(table, ids, others[2:])
    windowed, others = _windowed(windows, others)
    sampling_words, device_slots = None, None
    if others:
        changes, sampling_words, *parts = others
        pages.apply(changes)
        device_slots = DeviceSlots(*parts)
    step_input = StepInput(
        token_ids=ids,
        slots=slots,
        on_device=DeviceStep(
            *(starts, contexts, own_rows, pages.on_device, positions, bits if trees else None),
            *(order, layout.chain_lens, layout.tree_lens, max(context_lens)),
        ),
        query_lens=query_lens,
        context_lens=context_lens,
        rows=rows.tolist(),
        adapters=_adapter_rows(adapter_slots, device, device_slots),
        trees=trees,
        windowed=windowed,
    )
    offsets, has_drafts = layout.starts[:-1].tolist(), plan.num_drafts > 0
    on_device = drawn_after, drawn_rows, sampling, sampling_words
    return PreparedStep(step_input, *draws, *on_device, offsets, has_drafts, late_numbers)


def _token_ids(chunks: list[ScheduledChunk]) -> Words:
    token_ids: list[int] = []
    for chunk in chunks:
        tokens = chunk.sequence.tokens
        if chunk.num_tokens == 1:
            token_ids.append(tokens[chunk.start] if chunk.start < len(tokens) else _PENDING)
        else:
            token_ids += tokens[chunk.start : chunk.end]
            token_ids += chunk.draft
    return np.array(token_ids, dtype=np.int32)


def _take_pending(
    table: StateTable, token_ids: Tensor, uploaded: list[Tensor]
) -> tuple[Tensor | None, list[Tensor]]:
    """Put last draws where they are pending; the rows of the draws to come, and what else was uploaded."""
    if table.last_draws is None:
        return None, uploaded
    drawn_rows, places, rows, *others = uploaded
    if len(places):
        token_ids.index_copy_(0, places, table.last_draws.index_select(0, rows))
    return drawn_rows, others


def _windowed(table: PageTable | None, uploaded: list[Tensor]) -> tuple[WindowedPages | None, list[Tensor]]:
    """Where layers with a window have their own pages, if they have; and what else was uploaded."""
    if table is None:
        return None, uploaded
    slots, changes, *others = uploaded
    table.apply(changes)
    return WindowedPages(slots, table.on_device), others


def _adapter_slots(table: StateTable, rows: Ints, layout: Layout) -> Ints | None:
    """The adapter slot of each token; None if none has one."""
    slots = table.adapter_slots(rows)
    return None if slots is None or not (slots >= 0).any() else slots[layout.owners]


def _slot_words(slots: Ints | None) -> tuple[Words, Words]:
    """Adapter slots of all tokens, and each slot once, as DeviceSlots has them."""
    if slots is None:
        return _NO_WORDS, _NO_WORDS
    return slots.astype(np.int32), np.unique(slots[slots >= 0]).astype(np.int32)


def _adapter_rows(
    slots: Ints | None, device: torch.device, on_device: DeviceSlots | None
) -> AdapterRows | None:
    """The adapters of tokens with these slots."""
    if slots is None:
        return None
    return (
        _cached_rows(slots.tobytes(), device)
        if on_device is None
        else AdapterRows(slots, device, lambda: on_device)
    )


@functools.lru_cache(maxsize=4)
def _cached_rows(slots: bytes, device: torch.device) -> AdapterRows:
    """Cached: consecutive decode steps have the same sequences, so the same grouping by adapter."""
    # Copied: Numba would compile a second version for read-only arrays.
    return AdapterRows(np.frombuffer(slots, dtype=np.int64).copy(), device)


def _draws(plan: Plan, rows: Ints, layout: Layout) -> Draws:
    """The draws of a plan whose chunks have these rows."""
    sampled = plan.sampled
    last, positions = layout.starts[1:].astype(np.int64) - 1, layout.context_lens.astype(np.int64)
    if len(sampled) == len(plan.chunks):
        draws = Draws(sampled, rows, last, positions)
    else:
        keep = np.flatnonzero([chunk.samples for chunk in plan.chunks])
        draws = Draws(sampled, rows[keep], last[keep], positions[keep])
    return _with_drafts(draws) if plan.num_drafts else draws


def _with_drafts(draws: Draws) -> Draws:
    """One more draw for each draft token."""
    widths = np.array([1 + len(chunk.draft) for chunk in draws.sampled], dtype=np.int64)  # draws per chunk
    # Draws of a chunk whose last token has index e follow the tokens e - len(draft) … e.
    back = np.repeat(np.cumsum(widths), widths) - 1 - np.arange(widths.sum())
    positions = np.repeat(draws.positions, widths) - back
    for chunk, end in zip(draws.sampled, np.cumsum(widths).tolist(), strict=True):
        if chunk.parents:
            positions[end - len(chunk.draft) : end] = chunk.start + 1 + np.array(tree_depths(chunk.parents))
    token_index = np.repeat(draws.token_index, widths) - back
    return Draws(draws.sampled, np.repeat(draws.rows, widths), token_index, positions)
