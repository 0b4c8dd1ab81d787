"""A second copy of all experts of a small layer, laid out for loop.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from backend.kernels.experts import loop
from backend.kernels.tiles import TILE_COLUMNS, in_tiles

MAX_SMALL_ELEMENTS = 1 << 21
"""Elements of a layer's experts: larger ones are not copied."""

_run_experts = cast("Callable[..., None]", loop.run_experts)


class FusedExperts:
    """Copies of E experts; computes in float32."""

    __slots__ = ("_down", "_gate_up")

    def __init__(self, gates: list[Tensor], ups: list[Tensor], down: list[Tensor], top_k: int) -> None:
        """`gates` and `ups` [E] of [I, D]; `down` [E] of [D, I]."""
        self._gate_up = in_tiles([torch.cat(pair) for pair in zip(gates, ups, strict=True)])
        self._down = in_tiles(down)
        nothing = torch.empty(0, top_k)
        self(torch.empty(0, len(down[0])), nothing.long(), nothing)  # compiles, or loads the cached code

    @staticmethod
    def fits(num_experts: int, width: int, features: int) -> bool:
        """Whether experts of `width` I and `features` D are small enough, and multiples of a tile."""
        is_small = 3 * num_experts * width * features <= MAX_SMALL_ELEMENTS
        return is_small and width % TILE_COLUMNS == 0 and features % TILE_COLUMNS == 0

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Σ_k weights[t, k] · expert[chosen[t, k]](x[t]): x [T, D], chosen and weights [T, k] → [T, D]."""
        y = torch.zeros_like(x)
        arrays = x.numpy(), chosen.numpy(), weights.numpy()
        _run_experts(*arrays, self._gate_up, self._down, y.numpy())
        return y
