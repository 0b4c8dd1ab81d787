"""The short convolution in torch."""

from __future__ import annotations

from torch import Tensor

from backend.kernels.recurrent import Chunks, State, scan_chunks


def short_conv(inputs: Tensor, weight: Tensor, bias: Tensor, state: State, chunks: Chunks) -> Tensor:
    """One sequence after the other; the rows are all that there is of a state."""

    def scan(seen: Tensor, recurrent: Tensor, first: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
        return convolve(seen[start - first :], weight, bias), recurrent, recurrent

    return scan_chunks(inputs, state, chunks, weight.shape[1], scan)


def convolve(rows: Tensor, weight: Tensor, bias: Tensor | float) -> Tensor:
    """Rows [taps - 1 + n, C] → [n, C]."""
    count = len(rows) - weight.shape[1] + 1
    result = bias + rows[:count] * weight[:, 0]
    for tap in range(1, weight.shape[1]):
        result += rows[tap : tap + count] * weight[:, tap]
    return result
