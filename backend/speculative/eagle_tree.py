"""Trees from an EAGLE head: at each level the likeliest paths go on (arXiv 2406.16858).

All that was looked at on the way are candidates; of these the likeliest paths are the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.speculative import BRANCHES
from backend.speculative.eagle_network import EagleNetwork
from backend.speculative.round_kv import RoundKV
from backend.speculative.tree import TreeBudget, best_nodes
from backend.types import Draft


@dataclass(slots=True)
class _Pool:
    """Candidates of B sequences, level by level: n of each at every level."""

    tokens: list[Tensor] = field(default_factory=list)  # [B, n]
    parents: list[Tensor] = field(default_factory=list)  # [B, n] numbers of candidates; -1: the sequence
    logprobs: list[Tensor] = field(default_factory=list)  # [B, n] of the whole path
    size: int = 0

    def add(self, tokens: Tensor, parents: Tensor, logprobs: Tensor) -> int:
        """A level; the number of its first candidate."""
        begin = self.size
        self.tokens.append(tokens)
        self.parents.append(parents)
        self.logprobs.append(logprobs)
        self.size += tokens.shape[1]
        return begin

    def trees(self, depths: list[int], budget: TreeBudget) -> list[Draft]:
        """The best tree of each sequence, at most so deep."""
        tokens, parents, logprobs = (
            torch.cat(levels, dim=1).tolist() for levels in (self.tokens, self.parents, self.logprobs)
        )
        ends = torch.tensor([level.shape[1] for level in self.tokens]).cumsum(0).tolist()
        found: list[Draft] = []
        for row, depth in enumerate(depths):
            end = ends[depth - 1]
            found.append(
                best_nodes(tokens[row][:end], parents[row][:end], logprobs[row][:end], budget.of(depth))
            )
        return found


@dataclass(frozen=True, slots=True)
class TreeRound:
    """One round for B sequences: where the head is, and what it sees."""

    network: EagleNetwork
    kv: RoundKV  # columns for BRANCHES tokens of each level but the first are left behind `column`
    column: int  # the first that is free
    padding: Tensor | None  # [B, 1, 1, C] added to scores; None: nothing is hidden
    starts: list[int]  # [B] position of the slot that was computed last

    def grow(self, features: Tensor, depths: list[int], budget: TreeBudget) -> list[Draft]:
        """From the predicted states [B, D] behind the last slots to trees that are so deep."""
        count, device = len(self.starts), features.device
        depth = max(depths)
        pool = _Pool()
        logprobs, tokens = _likeliest(self.network, features)
        pool.add(tokens, torch.full_like(tokens, -1), logprobs)
        numbers = torch.arange(BRANCHES, device=device).expand(count, -1)
        features = features.repeat_interleave(BRANCHES, dim=0)
        is_seen = torch.zeros(count, BRANCHES, (depth - 1) * BRANCHES, dtype=torch.bool, device=device)
        for level in range(1, depth):
            begin = (level - 1) * BRANCHES
            is_seen[:, :, begin : begin + BRANCHES] = torch.eye(BRANCHES, dtype=torch.bool, device=device)
            features = self._forward(tokens, features, level, is_seen)
            found, next_tokens = _likeliest(self.network, features)
            totals = (logprobs.view(-1, 1) + found).view(count, -1)
            next_tokens = next_tokens.view(count, -1)
            first = pool.add(next_tokens, numbers.repeat_interleave(BRANCHES, dim=1), totals)
            logprobs, chosen = totals.topk(BRANCHES, dim=1)
            tokens, numbers = next_tokens.gather(1, chosen), first + chosen
            parents = chosen // BRANCHES
            rows = torch.arange(count, device=device)[:, None]
            features = features.view(count, BRANCHES, -1)[rows, parents].flatten(0, 1)
            is_seen = is_seen[rows, parents]
        return pool.trees(depths, budget)

    def _forward(self, tokens: Tensor, features: Tensor, level: int, is_seen: Tensor) -> Tensor:
        """Tokens [B, n] with the states that proposed them [B * n, D] → the states behind them."""
        network = self.network
        begin = self.column + (level - 1) * BRANCHES
        end = begin + BRANCHES
        x = network.inputs(tokens.flatten(), features)
        mask = torch.zeros(*tokens.shape, end, dtype=x.dtype, device=x.device)
        mask[:, :, self.column :].masked_fill_(~is_seen[:, :, : end - self.column], float("-inf"))
        if self.padding is not None:
            mask += self.padding[:, 0, :, :end]
        angles = network.angles([start + level for start in self.starts for _ in range(BRANCHES)])
        x += network.attention(x, self.kv, begin, angles, mask[:, None])
        return network.predicted(x)


def _likeliest(network: EagleNetwork, features: Tensor) -> tuple[Tensor, Tensor]:
    """The best guesses by each state [n, D]: their log-probabilities and ids, [n, BRANCHES] each."""
    best = F.log_softmax(network.head(features).float(), dim=-1).topk(BRANCHES, dim=-1)
    # Rounding must not let a path gain by growing.
    return best.values.clamp_(max=0.0), best.indices
