"""Plan → StepInput: one pass over the chunks for their tokens, numpy for the rest, one tensor per array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from backend.engine.state import StateTable
from backend.layers.step_input import StepInput
from backend.sampling.logits import Ints
from backend.types import PAGE_TOKENS, Plan, ScheduledChunk


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step that is ready to run, and where its results lie."""

    step_input: StepInput
    sampled: list[ScheduledChunk]  # the R chunks whose logits give a token, in plan order
    rows: Ints  # [R] their rows
    token_index: Ints  # [R] which of the step's T tokens is each one's last
    offsets: Ints  # [B] where each chunk's tokens begin


def prepare(plan: Plan, table: StateTable, device: torch.device) -> PreparedStep:
    """Gather everything that the forward pass needs."""
    chunks = plan.chunks
    rows = table.bind(chunks)
    token_ids: list[int] = []
    for chunk in chunks:
        if chunk.num_tokens == 1:
            token_ids.append(chunk.sequence.tokens[chunk.start])
        else:
            token_ids += chunk.sequence.tokens[chunk.start : chunk.end]
    query_lens = [chunk.num_tokens for chunk in chunks]
    context_lens = [chunk.end for chunk in chunks]
    lengths = np.array(query_lens, dtype=np.int64)
    ends = np.cumsum(lengths)
    offsets = ends - lengths
    starts = np.array(context_lens, dtype=np.int64) - lengths
    positions = np.repeat(starts - offsets, lengths) + np.arange(len(token_ids))
    step_input = StepInput(
        token_ids=torch.tensor(token_ids, dtype=torch.int64).to(device),
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(table.slots(np.repeat(rows, lengths), positions)).to(device),
        query_lens=query_lens,
        context_lens=context_lens,
        page_table=torch.from_numpy(table.pages(rows, -(-max(context_lens) // PAGE_TOKENS))).to(device),
    )
    is_sampled = [chunk.samples for chunk in chunks]
    if all(is_sampled):
        return PreparedStep(step_input, chunks, rows, ends - 1, offsets)
    keep = np.flatnonzero(is_sampled)
    sampled = [chunks[i] for i in keep]
    return PreparedStep(step_input, sampled, rows[keep], ends[keep] - 1, offsets)
