"""What CUDA graphs are captured by: sizes rounded up, so that few graphs serve all steps."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None]]]
"""Records a function: the tensor that holds its result after each replay, and what replays it."""

_FIRST_CONTEXT, _CONTEXT_FACTOR = 2048, 4
"""The longest contexts of keys are 2,048 tokens, four times as many, and so on."""


def padded_rows(count: int) -> int:
    """1, 2, 4, 8, then the next multiple of 8."""
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8


def padded_context(longest: int, most: int) -> int:
    """The next context of keys; `most` is the longest of all."""
    padded = _FIRST_CONTEXT
    while padded < longest:
        padded *= _CONTEXT_FACTOR
    return min(padded, most)
