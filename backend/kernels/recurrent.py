"""What operations with a recurrent state share: its slots, and chunks of sequences. See kv/states.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Chunks = NDArray[np.int64]
"""[B, 6], for each sequence: its slot; how many rows to replay first; its first token of the step's T; its
number of tokens; 1 for a new sequence, whose state is zero; its position."""


BLOCK_TOKENS = 64


class State(NamedTuple):
    """The slots of one layer, in float32; shapes of config.StateSpec."""

    recurrent: Tensor  # [slots, *state_shape]
    rows: Tensor  # [slots, taps - 1 + log, W]: inputs before the state's position, and those kept after it


Scan = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor, Tensor]]
"""Rows [taps - 1 + n, W], the state before the last n, and the positions of their first and of the first that
is not replayed → outputs of those that are not, and the states before and after them."""


def scan_chunks(inputs: Tensor, state: State, chunks: Chunks, taps: int, scan: Scan) -> Tensor:
    """One sequence after the other, in torch.

    A chunk that fits into the log is only kept there: its state is that before it. Others change the state.
    """
    window = taps - 1
    max_logged = state.rows.shape[1] - window
    found = []
    for slot, num_replayed, begin, count, is_new, position in chunks.tolist():
        rows, recurrent = state.rows[slot], state.recurrent[slot]
        if is_new:
            rows.zero_()
            recurrent.zero_()
        seen = torch.cat((rows[: window + num_replayed], inputs[begin : begin + count]))
        output, before, after = scan(seen, recurrent, position - num_replayed, position)
        is_kept = count <= max_logged
        recurrent.copy_(before if is_kept else after)
        left = seen[num_replayed:] if is_kept else seen[len(seen) - window :]
        rows[: len(left)] = left
        found.append(output)
    return torch.cat(found)


def aligned_blocks(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Positions from `begin` to `end`, cut at multiples of 64."""
    while begin < end:
        cut = min(end, (begin // BLOCK_TOKENS + 1) * BLOCK_TOKENS)
        yield begin, cut
        begin = cut
