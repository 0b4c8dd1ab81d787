"""Linear with weights of 4 bits, for CPUs that multiply bfloat16.

x [T, K] float → y [T, N] float32; x is rounded to bfloat16, sums are float32. An element of W [N, K] is
scale · (integer - zero), or scale · E2M1; scales and zeros belong to a row and a group of columns. Bound:
decoding for few rows, compute for many.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.linear import paired
from backend.kernels.linear.int4 import loop
from backend.kernels.linear.loop import BLOCK_COLUMNS

_MIDDLE = 16
"""The table's place for 0: a code and its offset add up to 31 at most."""

_LARGEST_SCALE = 2.0**15  # in fp16

INTEGERS = torch.arange(32.0) - _MIDDLE
"""What the places of a table stand for."""

E2M1 = F.pad(torch.tensor([0.0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]), (_MIDDLE, 0))
"""The same where codes are E2M1; doubled."""


class Int4Weight:
    """Codes [N / 64, K / 2, 32] of 4 x 4 bits; fp16 scales and bytes of offsets [N / 64, groups, 64].

    The table has the scales' common power of two, so that fp16 holds those that formats store exactly.
    """

    __slots__ = ("_job", "_order", "_shape", "_tensors")

    def __init__(
        self,
        values: Tensor,
        scales: Tensor,
        zeros: Tensor | None,
        group: int,
        bias: Tensor | None,
        order: Tensor | None = None,
        numbers: Tensor = INTEGERS,
    ) -> None:
        """`values` [N, K] int8 that `fits`; `scales`, `zeros` [N, ceil(K / group)]; `order`: GPTQ's."""
        (n, k), width = values.shape, min(group, loop.MOST_COLUMNS)
        if group > width:  # as many groups as tiles
            tiles = torch.arange(-(-k // width)) * width // group
            scales, zeros = scales[:, tiles], None if zeros is None else zeros[:, tiles]
        exponent = math.frexp(_LARGEST_SCALE / (scales.abs().max().item() or 1.0))[1] - 1
        lowest = _lowest(values)
        offsets = torch.full((n, 1), _MIDDLE + lowest) if zeros is None else _MIDDLE + lowest - zeros.int()
        self._tensors = (
            _codes(values, lowest),
            _in_blocks((scales * 2.0**exponent).half()),
            _in_blocks(offsets.to(torch.uint8)),
            (numbers * 2.0**-exponent).bfloat16(),
            paired.padded(bias, n),
        )
        codes, factors, places, table, start = (tensor.data_ptr() for tensor in self._tensors)
        step = 0 if zeros is None else BLOCK_COLUMNS
        self._job = codes, factors, places, step, table, start
        self._order, self._shape = order, (-(-k // 2), n, -(-width // 2))

    @staticmethod
    def fits(values: Tensor, zeros: Tensor | None, group: int) -> bool:
        """Whether this processor can multiply by it."""
        if not paired.is_available() or (group % 2 and group < values.shape[1]):
            return False
        if loop.MOST_COLUMNS < group < values.shape[1] and group % loop.MOST_COLUMNS:
            return False
        low, high, lowest = int(values.min()), int(values.max()), _lowest(values)
        least, most = (0, 0) if zeros is None else (int(zeros.min()), int(zeros.max()))
        is_narrow = lowest <= low and high - lowest <= 15
        return is_narrow and most - lowest <= _MIDDLE and lowest - least <= 0

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        if self._order is not None:
            x = x[:, self._order]
        pairs, columns, group_pairs = self._shape
        x = paired.rounded(x)
        y = torch.empty(len(x), columns)
        job = (0, *self._job, x.data_ptr(), y.data_ptr(), len(x), pairs, columns, group_pairs)
        loop.multiply(job, paired.num_threads(len(x) * pairs * columns))
        return y


def e2m1_codes(values: Tensor) -> Tensor:
    """The codes of doubled values of E2M1, -12 to 12."""
    codes = torch.zeros(25, dtype=torch.int8)
    codes[E2M1[_MIDDLE:].long() + 12] = torch.arange(16, dtype=torch.int8)
    return codes[values.long() + 12]


def _lowest(values: Tensor) -> int:
    """The integer of code 0."""
    return 0 if int(values.min()) >= 0 else -8


def _in_blocks(by_row: Tensor) -> Tensor:
    """[N, groups] → [N / 64, groups, 64]."""
    by_row = F.pad(by_row, (0, 0, 0, -len(by_row) % BLOCK_COLUMNS))
    return by_row.view(-1, BLOCK_COLUMNS, by_row.shape[1]).transpose(1, 2).contiguous()


def _codes(values: Tensor, lowest: int) -> Tensor:
    """Word j of a pair has in its bits 4 v and up the code of row 16 v + j / 2 and column j % 2."""
    columns, pairs = BLOCK_COLUMNS, -(-values.shape[1] // 2)
    found = torch.empty(-(-len(values) // columns), pairs, 32, dtype=torch.int16)
    for block, rows in zip(found, torch.split(values, columns), strict=True):
        codes = F.pad(rows.int() - lowest, (0, values.shape[1] % 2, 0, columns - len(rows)))
        parts = codes.view(4, 16, pairs, 2).permute(0, 2, 1, 3).reshape(4, pairs, 32)
        block[:] = parts[0] | parts[1] << 4 | parts[2] << 8 | parts[3] << 12
    return found
