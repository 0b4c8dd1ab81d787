"""Plans of attention from the pages of each sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from backend.kernels.paged_attention import AttentionPlan, Step, plan_attention
from backend.layers.step_input import Trees, step_of_tables


def planned(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    pages: Tensor,
    windows: Iterable[int | None],
    dtype: torch.dtype,
    trees: Trees | None = None,
) -> AttentionPlan:
    """The plan of sequences whose pages are the rows of `pages` [B, P], in an engine's table.

    There they are in other rows, after one that belongs to another sequence.
    """
    count, device = len(query_lens), pages.device
    token_ids = torch.zeros(sum(query_lens), dtype=torch.int32)
    lengths = list(query_lens), list(context_lens)
    step = step_of_tables(token_ids, *lengths, pages.cpu().numpy(), device, trees)
    rows = [count - index for index in range(count)]
    table = torch.cat((pages[:1], pages.flip(0)))
    if device.type == "cuda":
        table = table.to(torch.int32)
    on_device = dataclasses.replace(
        step.on_device, rows=torch.tensor(rows, dtype=torch.int32, device=device), page_table=table
    )
    return plan_attention(Step(*lengths, rows, step.trees, on_device, dtype), windows)
