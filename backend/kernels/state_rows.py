"""What compiled loops over recurrent states share: rows of a sequence, their convolution, and what is kept.

A row is of the state's own, which `num_known` are, or else of the step's, whose first is number `begin`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from backend.kernels.compiled import inner
from backend.kernels.exponential import exponential

_ONE = np.float32(1)

Floats = NDArray[np.float32]


@inner
def row_of(number: int, rows: Floats, inputs: Floats, num_known: int, begin: int) -> Floats:
    """The row of this number."""
    row: Floats = rows[number] if number < num_known else inputs[begin + number - num_known]
    return row


@inner
def convolve(
    result: Floats,
    first: int,
    number: int,
    rows: Floats,
    inputs: Floats,
    conv: Floats,
    num_known: int,
    begin: int,
) -> None:
    """silu(result + conv) of the channels from `first` on, whose window begins at this row."""
    for tap in range(conv.shape[1]):
        row = row_of(number + tap, rows, inputs, num_known, begin)
        for i in range(result.shape[0]):
            result[i] += row[first + i] * conv[first + i, tap]
    for i in range(result.shape[0]):
        result[i] = result[i] / (_ONE + exponential(-result[i]))


@inner
def keep(
    rows: Floats,
    inputs: Floats,
    first: int,
    count: int,
    source: int,
    num_kept: int,
    num_known: int,
    begin: int,
) -> None:
    """Move `count` channels of the kept rows to the beginning: row `source` becomes row 0."""
    for number in range(num_kept):
        row = row_of(source + number, rows, inputs, num_known, begin)
        for i in range(first, first + count):
            rows[number, i] = row[i]
