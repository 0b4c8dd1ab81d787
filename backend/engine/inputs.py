"""Plan → StepInput: one pass over the chunks for their tokens, NumPy for the rest, one upload."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from backend.engine.state import StateTable
from backend.kernels.lora import AdapterRows
from backend.layers.step_input import StepInput
from backend.sampling.logits import Ints
from backend.speculative.tree import paths
from backend.types import PAGE_TOKENS, Plan, ScheduledChunk, tree_depths


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step that is ready to run, and where to find its results."""

    step_input: StepInput
    sampled: list[ScheduledChunk]  # the R chunks whose logits give a token, in plan order
    # N draws: one per sampled chunk and one more per draft token; a chunk's own are consecutive.
    rows: Ints  # [N] state-table rows
    token_index: Ints  # [N] index, among the step's T tokens, of the token before each draw
    positions: Ints  # [N] positions of the tokens to draw
    offsets: Ints  # [B] index of each chunk's first token
    has_drafts: bool = False  # False: N = R

    @property
    def has_trees(self) -> bool:
        """Whether any draft is a tree."""
        return self.step_input.trees is not None

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
    token_ids: list[int] = []
    for chunk in chunks:
        if chunk.num_tokens == 1:
            token_ids.append(chunk.sequence.tokens[chunk.start])
        else:
            token_ids += chunk.sequence.tokens[chunk.start : chunk.end]
            token_ids += chunk.draft
    query_lens = [chunk.num_tokens for chunk in chunks]
    context_lens = [chunk.end for chunk in chunks]
    lengths = np.array(query_lens, dtype=np.int64)
    ends = np.cumsum(lengths)
    offsets = ends - lengths
    next_positions = np.array(context_lens, dtype=np.int64)
    starts = next_positions - lengths
    positions = np.repeat(starts - offsets, lengths) + np.arange(len(token_ids))
    slots = table.slots(np.repeat(rows, lengths), positions)
    trees = {b: chunk.parents for b, chunk in enumerate(chunks) if chunk.parents} if plan.num_drafts else {}
    for b, parents in trees.items():
        positions[offsets[b] + 1 : ends[b]] = starts[b] + np.array(tree_depths(parents))
    pages = table.pages(rows, -(-max(context_lens) // PAGE_TOKENS))
    uploaded = upload([np.array(token_ids, dtype=np.int64), positions, slots, pages], device)
    step_input = StepInput(
        token_ids=uploaded[0],
        positions=uploaded[1],
        slots=uploaded[2],
        query_lens=query_lens,
        context_lens=context_lens,
        page_table=uploaded[3],
        adapters=_adapter_rows(table.adapter_slots(rows), lengths, device),
        trees=trees or None,
    )
    is_sampled = [chunk.samples for chunk in chunks]
    if all(is_sampled):
        step = PreparedStep(step_input, chunks, rows, ends - 1, next_positions, offsets)
    else:
        keep = np.flatnonzero(is_sampled)
        sampled = [chunks[i] for i in keep]
        last = ends[keep] - 1
        step = PreparedStep(step_input, sampled, rows[keep], last, next_positions[keep], offsets)
    return _with_drafts(step) if plan.num_drafts else step


def upload(arrays: Sequence[Ints], device: torch.device) -> list[Tensor]:
    """The int64 arrays on `device`, each in its shape: copied there in one block, on a CPU not copied."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    block = pack(arrays)
    if device.type == "cuda":  # pinned: the host does not wait for the copy
        block = block.pin_memory()
    return unpack(block.to(device, non_blocking=True), arrays)


def pack(arrays: Sequence[Ints]) -> Tensor:
    """All elements of the arrays, one array after the other."""
    return torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))


def unpack(block: Tensor, arrays: Sequence[Ints]) -> list[Tensor]:
    """Views of a packed block in the shapes of `arrays`."""
    parts = torch.split(block, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _adapter_rows(slots: Ints | None, lengths: Ints, device: torch.device) -> AdapterRows | None:
    """The adapter slot of each token; None if none has one."""
    if slots is None or not (slots >= 0).any():
        return None
    return _cached_rows(np.repeat(slots, lengths).tobytes(), device)


@functools.lru_cache(maxsize=4)
def _cached_rows(slots: bytes, device: torch.device) -> AdapterRows:
    """Cached: consecutive decode steps have the same sequences, so the same grouping by adapter."""
    # Copied: Numba would compile a second version for read-only arrays.
    return AdapterRows(np.frombuffer(slots, dtype=np.int64).copy(), device)


def _with_drafts(step: PreparedStep) -> PreparedStep:
    """The step with one more draw for each draft token."""
    widths = np.array([1 + len(chunk.draft) for chunk in step.sampled], dtype=np.int64)  # draws per chunk
    # Draws of a chunk whose last token has index e follow the tokens e - len(draft) … e.
    back = np.repeat(np.cumsum(widths), widths) - 1 - np.arange(widths.sum())
    positions = np.repeat(step.positions, widths) - back
    if step.has_trees:
        for chunk, end in zip(step.sampled, np.cumsum(widths).tolist(), strict=True):
            if chunk.parents:
                positions[end - len(chunk.draft) : end] = (
                    chunk.start + 1 + np.array(tree_depths(chunk.parents))
                )
    return replace(
        step,
        rows=np.repeat(step.rows, widths),
        token_index=np.repeat(step.token_index, widths) - back,
        positions=positions,
        has_drafts=True,
    )
