"""The state table: one row per running sequence, for as long as it runs; a step gathers the rows it needs.

It holds what sampling and attention need per sequence, apart from its tokens. A feature that needs state per
sequence (adapter slot, grammar) adds a column.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import torch

from backend.engine.page_table import PageTable
from backend.kv.manager import pages_for
from backend.sampling.logits import Ints, RowEdits, TokenCounts
from backend.sampling.sampler import SamplingBatch
from backend.speculative.late import LateDrafts
from backend.types import ScheduledChunk, Sequence


class StateTable:
    """Rows 0 … max_rows - 1, assigned by the scheduler; filled when the owner is first scheduled."""

    def __init__(
        self,
        max_rows: int,
        max_model_tokens: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
        *,
        has_window_pages: bool = False,
        is_ahead: bool = False,
    ) -> None:
        self._eos_token_ids = eos_token_ids
        self._owners: list[Sequence | None] = [None] * max_rows
        self._row_of: dict[Sequence, int] = {}
        # The last row is that of padding, see graphs.py.
        self.page_table = PageTable(max_rows + 1, pages_for(max_model_tokens), device)
        self.window_table: PageTable | None = None  # of layers with a window, if they have their own pages
        if has_window_pages:
            self.window_table = PageTable(max_rows, pages_for(max_model_tokens), device)
        # The token that each row drew last, where steps are launched before the host knows it.
        self.last_draws = torch.zeros(max_rows, dtype=torch.int32, device=device) if is_ahead else None
        self.late = LateDrafts()
        self._seeds = np.zeros(max_rows, dtype=np.uint64)
        self._temperature = np.zeros(max_rows, dtype=np.float32)
        self._top_k = np.zeros(max_rows, dtype=np.int64)
        self._top_p = np.ones(max_rows, dtype=np.float32)
        self._min_p = np.zeros(max_rows, dtype=np.float32)
        # Rarely used, so only rows that need them have an entry.
        self._edits: dict[int, RowEdits] = {}
        self._banned_until: dict[int, tuple[int, Ints]] = {}  # (until this position, ban these ids)
        self._with_grammar: set[int] = set()
        self._num_top: dict[int, int] = {}  # top log-probabilities per token
        self._adapter_slots = np.full(max_rows, -1, dtype=np.int64)
        self._num_adapted = 0  # rows with an adapter

    def bind(self, chunks: list[ScheduledChunk]) -> Ints:
        """The rows [B] of the chunks; fills those of new owners and updates page tables."""
        owners, table = self._owners, self.page_table
        rows: list[int] = []
        for chunk in chunks:
            sequence = chunk.sequence
            row = sequence.row
            if owners[row] is not sequence:
                self._fill(row, sequence)
            # Pages after the chunk's own tokens are for drafts: they are given back, and may change.
            if len(sequence.pages) > table.num_known[row]:
                table.grow(row, sequence.pages, pages_for(chunk.end - len(chunk.draft)))
            rows.append(row)
        if self.window_table is not None:
            for chunk, row in zip(chunks, rows, strict=True):
                num_kept = pages_for(chunk.end - len(chunk.draft))
                self.window_table.grow(row, chunk.sequence.window_pages, num_kept)
        return np.array(rows, dtype=np.int64)

    def has(self, sequence: Sequence) -> bool:
        """Whether the sequence owns a row."""
        return sequence in self._row_of

    def forget(self, sequence: Sequence) -> None:
        """Free the row of a sequence that was finished, aborted or preempted. Idempotent."""
        row = self._row_of.pop(sequence, None)
        if row is not None:
            self._clear(row)

    def sampling(self, rows: Ints, positions: Ints) -> SamplingBatch:
        """Sampling parameters for the tokens at `positions`."""
        return SamplingBatch(
            seeds=self._seeds[rows],
            positions=positions,
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
        )

    @property
    def has_edits(self) -> bool:
        """Whether any row has penalties or logit biases."""
        return bool(self._edits)

    def edits(self, rows: Ints) -> list[tuple[int, RowEdits]]:
        """(index into rows, edits) for rows with penalties or logit biases."""
        if not self._edits:
            return []
        return [(i, self._edits[row]) for i, row in enumerate(rows.tolist()) if row in self._edits]

    def bans(self, rows: Ints, positions: Ints) -> list[tuple[int, Ints]]:
        """(index into rows, token ids) for rows below their min_tokens, which must not end yet."""
        if not self._banned_until:
            return []
        found = [(i, self._banned_until.get(row)) for i, row in enumerate(rows.tolist())]
        return [(i, ban[1]) for i, ban in found if ban is not None and positions[i] < ban[0]]

    def logprobs(self, rows: Ints) -> list[tuple[int, int]]:
        """(index into rows, number of top tokens) for rows that asked for log-probabilities."""
        if not self._num_top:
            return []
        return [(i, self._num_top[row]) for i, row in enumerate(rows.tolist()) if row in self._num_top]

    @property
    def has_grammars(self) -> bool:
        """Whether any row's owner has a grammar."""
        return bool(self._with_grammar)

    def adapter_slots(self, rows: Ints) -> Ints | None:
        """Adapter slots of the rows, -1 for the base model; None if no row of the table has an adapter."""
        return self._adapter_slots[rows] if self._num_adapted else None

    def count(self, rows: Ints, token_ids: list[int], kept: Container[int] | None = None) -> None:
        """Add drawn tokens to the counts of penalties; with drafts, only draws whose index is in `kept`."""
        for i, edits in self.edits(rows):
            if edits.counts is not None and (kept is None or i in kept):
                edits.counts.add(token_ids[i])

    def _clear(self, row: int) -> None:
        self._owners[row] = None
        self.page_table.clear(row)
        if self.window_table is not None:
            self.window_table.clear(row)
        self._edits.pop(row, None)
        self._banned_until.pop(row, None)
        self._num_top.pop(row, None)
        self._num_adapted -= bool(self._adapter_slots[row] >= 0)
        self._adapter_slots[row] = -1
        self._with_grammar.discard(row)

    def _fill(self, row: int, sequence: Sequence) -> None:
        assert self._owners[row] is None, f"row {row} was assigned twice"
        params = sequence.request.params
        self._owners[row] = sequence
        self._row_of[sequence] = row
        self._adapter_slots[row] = sequence.adapter_slot
        self._num_adapted += sequence.adapter_slot >= 0
        self._seeds[row] = sequence.seed & 0xFFFFFFFFFFFFFFFF
        self._temperature[row] = params.temperature
        self._top_k[row] = params.top_k
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        if (edits := _row_edits(sequence)) is not None:
            self._edits[row] = edits
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else self._eos_token_ids)
        if params.min_tokens and stops:
            until = sequence.num_prompt_tokens + params.min_tokens
            self._banned_until[row] = (until, np.array(sorted(stops), dtype=np.int64))
        if sequence.grammar is not None:
            self._with_grammar.add(row)
        if params.logprobs is not None:
            self._num_top[row] = params.logprobs


def _row_edits(sequence: Sequence) -> RowEdits | None:
    params = sequence.request.params
    repeats = params.repetition_penalty != 1
    if not (repeats or params.presence_penalty or params.frequency_penalty or params.logit_bias):
        return None
    counts = None
    if repeats or params.presence_penalty or params.frequency_penalty:
        split = sequence.num_prompt_tokens
        counts = TokenCounts(sequence.tokens[:split] if repeats else (), sequence.tokens[split:])
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return RowEdits.build(counts, penalties, params.logit_bias)
