"""The mixture-of-experts feed-forward block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from backend.config import MoEConfig
from backend.kernels.experts import FusedExperts, StackedExperts, choose_experts, run_experts
from backend.kernels.lora import AdapterRows
from backend.layers.linear import Linear
from backend.layers.mlp import gate_of

Choose = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The router's logits [T, E] → shares [T, k] float32 and experts [T, k] int64."""

ExtraTerm = Callable[[Tensor, Tensor], Tensor]
"""x [T, D] and the chosen experts [T, k] → a term [T, D] that is added to the experts' output."""


class MoE:
    """y[t] = Σ_k p[t, k] · expert_k(x[t]) over the top-k experts of the router."""

    __slots__ = ("choose", "down", "extra_term", "fused", "gate", "gate_up", "router")

    def __init__(
        self,
        config: MoEConfig,
        router: Linear,
        gate_up: list[Linear],
        down: list[Linear],
        fused: FusedExperts | StackedExperts | None = None,
        extra_term: ExtraTerm | None = None,
        choose: Choose | None = None,
    ) -> None:
        """`gate_up` and `down` per expert; `fused`: all at once, faster, for rows without adapters.

        `choose`: None for the largest shares of the router's softmax.
        """
        top_k, normalise = config.experts_per_token, config.normalise_top_k
        self.choose = choose or partial(choose_experts, top_k=top_k, normalise=normalise)
        self.router = router
        self.gate_up = gate_up
        self.down = down
        self.fused = fused
        self.extra_term = extra_term
        self.gate = gate_of(config.gate)

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """x [T, D] → [T, D]; `rows` says which of the T rows use an adapter."""
        return self.send(x, *self.choose(self.router(x)), rows)

    def send(self, x: Tensor, weights: Tensor, chosen: Tensor, rows: AdapterRows | None) -> Tensor:
        """The same with the router's choice."""
        if rows is not None and not self._has_adapters():
            rows = None
        output = self._run(x, chosen, weights, rows)
        if self.extra_term is not None:
            output += self.extra_term(x, chosen)
        return output

    def _run(self, x: Tensor, chosen: Tensor, weights: Tensor, rows: AdapterRows | None) -> Tensor:
        """By `fused`; what computes a row must not depend on its company."""
        fused = self.fused
        if fused is None:
            return run_experts(x, chosen, weights, self.gate_up, self.down, rows, self.gate)
        if rows is None:
            return fused(x, chosen, weights)
        if isinstance(fused, StackedExperts):
            return fused.adapted(x, chosen, weights, self.gate_up, self.down, rows)
        output, is_adapted = torch.empty_like(x), torch.from_numpy(rows.slots >= 0)
        own = rows.select(is_adapted.nonzero()[:, 0].numpy())
        mine = x[is_adapted], chosen[is_adapted], weights[is_adapted]
        output[is_adapted] = run_experts(*mine, self.gate_up, self.down, own)
        output[~is_adapted] = fused(x[~is_adapted], chosen[~is_adapted], weights[~is_adapted])
        return output

    def _has_adapters(self) -> bool:
        """Whether an adapter changes any expert; most change attention only."""
        return any(expert.adapters is not None for expert in (*self.gate_up, *self.down))
