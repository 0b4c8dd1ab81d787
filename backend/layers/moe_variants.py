"""Experts with parts that few families have: other routers, and a dense block beside the experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import MoEConfig, RoutingConfig
from backend.kernels.lora import AdapterRows
from backend.layers.linear import Linear
from backend.layers.mlp import MLP
from backend.layers.moe import Choose, MoE
from backend.layers.norm import RMSNorm

_SMALLEST_SUM = 1e-20
"""Divides shares where all sigmoids of a token are 0."""


class ScoredChoice:
    """A router's choice by `routing`: with a bias, within groups, or by sigmoids (arXiv:2408.15664)."""

    __slots__ = ("bias", "normalise", "routing", "top_k")

    def __init__(self, config: MoEConfig, routing: RoutingConfig, bias: Tensor | None) -> None:
        """`bias` [E] float32 is added to the scores to choose experts, not to their shares."""
        self.routing, self.bias = routing, bias
        self.top_k, self.normalise = config.experts_per_token, config.normalise_top_k

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [T, E] → shares [T, k] float32 and experts [T, k] int64."""
        logits = logits.float()
        if (softcap := self.routing.softcap) is not None:
            logits = (logits / softcap).tanh_().mul_(softcap)
        scores = sigmoid(logits) if self.routing.scores == "sigmoid" else torch.softmax(logits, dim=-1)
        ranked = scores if self.bias is None else scores + self.bias
        if self.routing.num_groups > 1:
            ranked = self._within_groups(ranked)
        chosen = ranked.topk(self.top_k, dim=-1).indices
        shares = scores.gather(1, chosen)
        if self.normalise:
            shares /= shares.sum(dim=-1, keepdim=True).add_(self.routing.sum_offset).clamp_(min=_SMALLEST_SUM)
        return shares.mul_(self.routing.share_factor), chosen

    def _within_groups(self, ranked: Tensor) -> Tensor:
        """Scores [T, E], -inf outside of each token's best groups."""
        routing = self.routing
        groups = ranked.view(len(ranked), routing.num_groups, -1)
        taken = 2 if routing.group_score == "top2" else 1
        best = groups.topk(taken, dim=-1).values.sum(dim=-1).topk(routing.kept_groups, dim=-1).indices
        is_out = torch.ones_like(groups[:, :, 0], dtype=torch.bool).scatter_(1, best, value=False)
        return groups.masked_fill(is_out[:, :, None], -torch.inf).flatten(1)


class LatentMoE(MoE):
    """y = out(experts(into(x))), where the experts are narrower than x, which the router reads."""

    __slots__ = ("into", "out")

    def __init__(
        self,
        config: MoEConfig,
        router: Linear,
        experts: tuple[list[Linear], list[Linear]],
        choose: Choose | None,
        into: Linear,
        out: Linear,
    ) -> None:
        """`experts`: gates and ups, and downs, of each; `into` [L, D] and `out` [D, L]."""
        super().__init__(config, router, *experts, choose=choose)
        self.into, self.out = into, out

    def send(self, x: Tensor, weights: Tensor, chosen: Tensor, rows: AdapterRows | None) -> Tensor:
        """x [T, D] → [T, D] with the router's choice."""
        return self.out(super().send(self.into(x, rows), weights, chosen, rows), rows)


@dataclass(frozen=True, slots=True)
class BesideNorms:
    """Norms of what router, experts and dense block get, and of what the latter two give."""

    router: RMSNorm
    experts: RMSNorm
    experts_out: RMSNorm
    shared: RMSNorm
    shared_out: RMSNorm


class SharedMoE:
    """Experts, plus a dense block that every token goes through: y = experts(x) + g(x) · shared(x)."""

    __slots__ = ("experts", "gate", "shared")

    def __init__(self, experts: MoE, shared: MLP, gate: Linear | None) -> None:
        """`gate` [1, D]: g is its sigmoid; None: g is 1."""
        self.experts = experts
        self.shared = shared
        self.gate = gate

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """x [T, D] → [T, D]; `rows` says which of the T rows use an adapter."""
        added = self.shared(x, rows)
        if self.gate is not None:
            added *= sigmoid(self.gate(x).float()).to(added.dtype)
        return self.experts(x, rows).add_(added)


class NormedExperts(SharedMoE):
    """norm(shared(norm(h))) + norm(experts(norm(h))) of the residual stream h, which the router norms too.

    Each chosen expert's share is multiplied by a number of its own.
    """

    __slots__ = ("expert_scale", "norms")

    def __init__(self, experts: MoE, shared: MLP, norms: BesideNorms, expert_scale: Tensor) -> None:
        """`expert_scale` [E] float32."""
        super().__init__(experts, shared, None)
        self.norms = norms
        self.expert_scale = expert_scale

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """x [T, D] → [T, D]; `rows` says which of the T rows use an adapter."""
        norms, experts = self.norms, self.experts
        weights, chosen = experts.choose(experts.router(norms.router(x)))
        weights = weights * self.expert_scale[chosen]
        sent = norms.experts_out(experts.send(norms.experts(x), weights, chosen, rows))
        return norms.shared_out(self.shared(norms.shared(x), rows)).add_(sent)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); torch.sigmoid rounds a tensor's last elements otherwise, so company would matter."""
    return 1 / (1 + torch.exp(-x))
