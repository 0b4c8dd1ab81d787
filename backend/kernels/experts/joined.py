"""All experts of a layer in two matrices: few tokens go through every expert, most of which then weigh 0.

A small model's experts cost more to call than to compute, and a handful of tokens wakes most of them anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.linear import WeightLayout, pack
from backend.kernels.swiglu import swiglu

MAX_JOINED_ELEMENTS = 1 << 21
"""Of a layer's experts: they are held a second time, and read as a whole."""

_TOKENS_PER_EXPERT = 3
"""With more tokens, computing what is thrown away costs more than calling the experts one by one."""


class JoinedExperts:
    """Copies of E experts; `serves` says when they are the faster ones. Computes in float32."""

    __slots__ = ("_down", "_gate_up", "_num_experts")

    def __init__(
        self, gates: list[Tensor], ups: list[Tensor], down: list[Tensor], layout: WeightLayout
    ) -> None:
        """`gates` and `ups` [E] of [I, D]; `down` [E] of [D, I]."""
        self._num_experts = len(down)
        self._gate_up = pack(torch.cat([*gates, *ups]), None, layout)
        self._down = pack(torch.cat(down, dim=1), None, layout)

    def serves(self, num_tokens: int) -> bool:
        """Whether so many tokens are computed faster here. One token has too few experts."""
        return 1 < num_tokens <= _TOKENS_PER_EXPERT * self._num_experts

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See the package."""
        num_tokens = x.shape[0]
        activated = swiglu(self._gate_up(x))
        shares = x.new_zeros(num_tokens, self._num_experts).scatter_(1, chosen, weights)
        by_expert = activated.view(num_tokens, self._num_experts, -1).mul_(shares.unsqueeze(2))
        return self._down(by_expert.view(num_tokens, -1))
