"""All experts of a small layer, held a second time for the loop of kernel.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from backend.kernels.experts import kernel
from backend.kernels.tiles import TILE_COLUMNS, in_tiles

MAX_SMALL_ELEMENTS = 1 << 21
"""Of a layer's experts: they are held a second time."""

_MOST_TOKENS_PER_EXPERT = 128
"""On average, and over torch's threads: with more its products are faster, though it is called expert by
expert."""

_run_experts = cast("Callable[..., None]", kernel.run_experts)


class SmallExperts:
    """Copies of E experts; `serves` says when they are the faster ones. Computes in float32."""

    __slots__ = ("_down", "_gate_up", "_most_tokens")

    def __init__(self, gates: list[Tensor], ups: list[Tensor], down: list[Tensor], top_k: int) -> None:
        """`gates` and `ups` [E] of [I, D]; `down` [E] of [D, I]."""
        self._gate_up = in_tiles([torch.cat(pair) for pair in zip(gates, ups, strict=True)])
        self._down = in_tiles(down)
        self._most_tokens = _MOST_TOKENS_PER_EXPERT * len(down) // (top_k * torch.get_num_threads())
        nothing = torch.empty(0, top_k)
        self(torch.empty(0, len(down[0])), nothing.long(), nothing)  # compiles, or reads what was compiled

    @staticmethod
    def holds(num_experts: int, width: int, features: int) -> bool:
        """Whether experts of `width` I and `features` D are small enough, and made of whole tiles."""
        is_small = 3 * num_experts * width * features <= MAX_SMALL_ELEMENTS
        return is_small and width % TILE_COLUMNS == 0 and features % TILE_COLUMNS == 0

    def serves(self, num_tokens: int) -> bool:
        """Whether so many tokens are computed faster here."""
        return num_tokens <= self._most_tokens

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See the package."""
        y = torch.zeros_like(x)
        arrays = x.numpy(), chosen.numpy(), weights.numpy()
        _run_experts(*arrays, self._gate_up, self._down, y.numpy())
        return y
