"""What one forward pass computes: a ragged batch of sequences over paged KV memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.kernels.lora import AdapterRows


@dataclass(frozen=True, slots=True)
class StepInput:
    """T tokens of B sequences, concatenated in the order of Plan.chunks: decodes first, then prefill chunks.

    Tensors are on the model's device. Sequence b owns `query_lens[b]` consecutive tokens, the last of which
    has position `context_lens[b] - 1`. The tokens of a draft tree have consecutive slots in KV memory as
    well, but their positions follow their depth, and they only see their ancestors.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, from 0 within the sequence
    slots: Tensor  # [T] int64: page * PAGE_TOKENS + offset, where the token's key and value go
    query_lens: list[int]  # [B] tokens computed in this step
    context_lens: list[int]  # [B] tokens in KV memory after this step
    page_table: Tensor  # [B, P] int64, padded with 0
    adapters: AdapterRows | None = None  # of the T tokens; None: none uses one
    # b → parents of all tokens of a draft tree but its first, as in types.DraftTree. None: no trees.
    trees: Mapping[int, tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        num_tokens = sum(self.query_lens)
        assert len(self.query_lens) == len(self.context_lens) == self.page_table.shape[0]
        assert self.token_ids.shape == self.positions.shape == self.slots.shape == (num_tokens,)
        assert self.token_ids.dtype == self.slots.dtype == self.page_table.dtype == torch.int64

    @property
    def num_tokens(self) -> int:
        """T, the tokens of the step."""
        return int(self.token_ids.shape[0])
