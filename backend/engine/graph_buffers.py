"""The static buffers that a captured step reads, and the padding behind a step that is copied into them.

A step of T tokens in B rows becomes one of `Key.num_tokens` in `Key.num_sequences` sequences: each token
behind T is a sequence of its own, with token 0 at the first place of the spare page, and each sequence behind
these is empty. So no row of the step has tokens that it did not have, and no key is read that is not its own.
Attention computes all rows in the tiles of the longest: sums may be rounded otherwise than in eager steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from backend.kernels.graph_keys import padded_context, padded_rows
from backend.kernels.lora import AdapterRows, DeviceSlots
from backend.kernels.paged_attention import DeviceStep
from backend.layers.step_input import StepInput

_MOST_VERIFIED = 256
"""Tokens of the largest step with drafts: in larger ones products hide launches, and padding has a cost."""


_NO_SLOT, _NOT_ACTIVE = -1, -2
"""The adapter slot of tokens without an adapter, and what pads the active slots: no token has it."""


class Key(NamedTuple):
    """What the launches of a captured step depend on; all numbers are rounded up."""

    num_tokens: int
    num_rows: int  # of the page table that have tokens
    row_tokens: int  # of the row with the most: 1, or more with drafts
    longest_context: int
    num_adapters: int = 0

    @property
    def num_sequences(self) -> int:
        """Rows, and tokens of padding: as many as rounding adds at most."""
        return min(self.num_tokens, self.num_rows + _step(self.num_tokens))


def key_of(step: StepInput, longest: int) -> Key | None:
    """The key of a step; None: it must run eagerly. `longest`: the longest context that any has."""
    num_tokens, num_rows = step.token_ids.shape[0], len(step.query_lens)
    rest = (
        padded_context(step.on_device.longest_context, longest),
        0 if step.adapters is None else _power(len(step.adapters.on_device.active)),
    )
    if num_tokens == num_rows:
        num_tokens = padded_rows(num_tokens)
        return Key(num_tokens, num_tokens, 1, *rest)
    if step.trees or num_tokens > _MOST_VERIFIED:
        return None
    return Key(_rounded(num_tokens), _power(num_rows), _power(max(step.query_lens)), *rest)


def first_keys(num_rows: int, longest: int) -> list[Key]:
    """The keys to capture before requests come, the largest first: no other needs more memory.

    After these, decodes of 1, 2, 4 and so on up to all rows, whose contexts are short. `num_rows`: of
    sequences, `longest`: the longest context.
    """
    rows, first = padded_rows(num_rows), padded_context(1, longest)
    keys = [Key(rows, rows, 1, longest), Key(rows, rows, 1, first)]
    drafted = _MOST_VERIFIED // _power(rows)
    if 1 < drafted <= longest:
        keys.insert(0, Key(_MOST_VERIFIED, _power(rows), drafted, longest))
    keys += [Key(1 << n, 1 << n, 1, first) for n in reversed(range(rows.bit_length()))]
    return list(dict.fromkeys(keys))


def most_tokens(num_rows: int) -> int:
    """The most tokens that any key has."""
    return max(padded_rows(num_rows), _MOST_VERIFIED)


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _step(count: int) -> int:
    """Numbers of tokens with drafts are multiples of it: 8, 16, then two up to each power of two."""
    return max(8, _power(count) // 4)


def _rounded(count: int) -> int:
    return _power(count) if count <= 8 else -(-count // _step(count)) * _step(count)


class StaticStep:
    """One key's buffers. At first they hold padding alone, in rows with as many tokens as may be."""

    def __init__(self, key: Key, page_table: Tensor, spare: tuple[int, int]) -> None:
        """`spare`: the row of `page_table` and the slot in KV memory that padding has."""
        self._spare_row, self._spare_slot = spare
        num_tokens, num_sequences = key.num_tokens, key.num_sequences
        device = page_table.device

        def words(count: int, value: int = 0) -> Tensor:
            return torch.full((count,), value, dtype=torch.int32, device=device)

        order = torch.arange(2 * num_tokens + 2, dtype=torch.int32, device=device)
        # Starts of sequences by their number, where the first ones have one token each and the others none.
        self._starts = order.clamp(max=num_tokens)
        row_tokens = key.row_tokens
        lens = [min(row_tokens, num_tokens - begin) for begin in range(0, num_tokens, row_tokens)]
        on_device = DeviceStep(
            query_starts=(order[: num_sequences + 1] * row_tokens).clamp_(max=num_tokens),
            context_lens=words(num_sequences, row_tokens),
            rows=words(num_sequences, self._spare_row),
            page_table=page_table,
            positions=words(num_tokens),
            ancestors=None,
            order=order[:num_sequences].clone(),
            chain_lens=[row_tokens] * num_sequences,
            tree_lens=[],
            longest_context=key.longest_context,
        )
        self._step = StepInput(
            token_ids=words(num_tokens),
            slots=torch.full((num_tokens,), self._spare_slot, dtype=torch.int64, device=device),
            on_device=on_device,
            query_lens=lens,
            context_lens=[row_tokens] * len(lens),
            rows=[self._spare_row] * len(lens),
        )
        self._slots, self._device_slots = np.full(num_tokens, _NO_SLOT), None
        if key.num_adapters:
            active = words(key.num_adapters, _NOT_ACTIVE)
            self._device_slots = DeviceSlots(words(num_tokens, _NO_SLOT), active)

    @property
    def step_input(self) -> StepInput:
        """The step in the buffers. A CPU groups its adapters again, by the host's numbers."""
        step, slots = self._step, self._device_slots
        if slots is None:
            return step
        return replace(step, adapters=AdapterRows(self._slots, step.token_ids.device, lambda: slots))

    def fill(self, step: StepInput) -> None:
        """Copy a step; what is behind it becomes padding."""
        static = self._step
        own, new = static.on_device, step.on_device
        for target, source, padding in (
            (static.token_ids, step.token_ids, 0),
            (static.slots, step.slots, self._spare_slot),
            (own.context_lens, new.context_lens, 1),
            (own.rows, new.rows, self._spare_row),
            (own.positions, new.positions, 0),
        ):
            _put(target, source, padding)
        num_tokens, num_rows = step.token_ids.shape[0], len(step.query_lens)
        if own.chain_lens[0] > 1:
            starts, behind = own.query_starts, len(own.query_starts) - num_rows - 1
            starts[: num_rows + 1].copy_(new.query_starts)
            starts[num_rows + 1 :].copy_(self._starts[num_tokens + 1 : num_tokens + 1 + behind])
        if step.adapters is not None and self._device_slots is not None:
            _put(self._device_slots.slots, step.adapters.on_device.slots, _NO_SLOT)
            _put(self._device_slots.active, step.adapters.on_device.active, _NOT_ACTIVE)
            self._slots[:num_tokens], self._slots[num_tokens:] = step.adapters.slots, _NO_SLOT
        more = static.token_ids.shape[0] - num_tokens
        # Attention on a CPU plans with the host's numbers; on a GPU nothing captured depends on them.
        static.query_lens[:] = [*step.query_lens, *[1] * more]
        static.context_lens[:] = [*step.context_lens, *[1] * more]
        static.rows[:] = [*step.rows, *[self._spare_row] * more]


def _put(target: Tensor, source: Tensor, padding: int) -> None:
    count = source.shape[0]
    target[:count].copy_(source)
    if count < target.shape[0]:
        target[count:].fill_(padding)
