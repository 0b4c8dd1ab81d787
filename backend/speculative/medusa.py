"""Medusa heads (arXiv 2401.10774): head i reads the target's hidden state at t and proposes token t + 1 + i.

No keys, no values, no roll-out: one pass for all heads and sequences. Format: pico/drafters/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.models.decoder import Decoder
from backend.models.loaded import LoadedModel
from backend.models.weights import WeightReader
from backend.speculative import BRANCHES
from backend.speculative.drafter import Drafter
from backend.speculative.heads import HeadShape, HiddenStates, head_precision, read_shape, slots_of
from backend.speculative.tree import TreeBudget, product_tree
from backend.types import Draft, Sequence


class MedusaShape(HeadShape, frozen=True):
    """Its config.json."""

    heads: int
    blocks: int


@dataclass(frozen=True, slots=True)
class MedusaNetwork:
    """Weights and arithmetic; holds no state of any sequence."""

    blocks: list[tuple[Tensor, Tensor]]  # weight [heads, D, D], multiplied from the right; bias [heads, 1, D]
    output: Tensor  # [heads, D, D] as well
    target: Decoder

    @property
    def num_heads(self) -> int:
        """Tokens that can be proposed."""
        return self.output.shape[0]

    def logits(self, states: Tensor, num_heads: int) -> Tensor:
        """Residual streams [B, D] → what each head proposes, [num_heads, B, vocabulary]."""
        hidden = self.target.final_norm(states)
        x = hidden.expand(num_heads, *hidden.shape)
        for weight, bias in self.blocks:
            x = x + F.silu(torch.baddbmm(bias[:num_heads], x, weight[:num_heads]))
        rows = torch.bmm(x, self.output[:num_heads]).flatten(0, 1)
        return self.target.head(rows).view(num_heads, len(states), -1)


def load_medusa(model: LoadedModel, folder: str) -> MedusaNetwork:
    """The heads in `folder` on this target. Raises CheckpointError."""
    shape = read_shape(folder, MedusaShape, model)
    width, numbers, precision = shape.hidden_size, range(shape.heads), head_precision(model)
    with torch.inference_mode(), WeightReader(folder) as reader:

        def matrices(name: str) -> Tensor:
            found = [reader.get(f"heads.{number}.{name}.weight", (width, width)).mT for number in numbers]
            return torch.stack(found).to(precision.device, precision.compute)

        def vectors(name: str) -> Tensor:
            found = [reader.get(f"heads.{number}.{name}.bias", (width,)) for number in numbers]
            return torch.stack(found)[:, None].to(precision.device, precision.compute)

        names = [f"blocks.{block}" for block in range(shape.blocks)]
        blocks = [(matrices(name), vectors(name)) for name in names]
        return MedusaNetwork(blocks, matrices("output"), model.decoder)


class MedusaDrafter(Drafter):
    """Chains of each head's most likely token, or trees of its most likely ones; keeps nothing of any
    sequence.

    A head does not know what those before it proposed: in a tree it says the same after every path.
    """

    name = "medusa"
    is_cheap = False

    def __init__(self, network: MedusaNetwork, states: HiddenStates, trees: TreeBudget | None = None) -> None:
        """`trees`: None for chains."""
        self._network = network
        self._states = states
        self._trees = trees

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        """A chain or tree from each sequence's last state, at most as deep as there are heads."""
        slots = [slots_of(sequence, [sequence.num_computed_tokens - 1])[0] for sequence in sequences]
        num_heads = min(max(ks), self._network.num_heads)
        logits = self._network.logits(self._states.at(slots), num_heads)
        if self._trees is not None:
            return _trees(logits, ks, self._trees)
        drafts: list[list[int]] = logits.argmax(dim=-1).mT.tolist()
        return [draft[:k] for draft, k in zip(drafts, ks, strict=True)]


def _trees(logits: Tensor, ks: list[int], budget: TreeBudget) -> list[Draft]:
    """The likeliest paths by what the heads propose, logits [heads, B, vocabulary]; each at most k deep."""
    best = F.log_softmax(logits.float(), dim=-1).topk(BRANCHES, dim=-1)
    tokens, logprobs = (values.transpose(0, 1).tolist() for values in (best.indices, best.values))
    depths = [min(k, len(logits)) for k in ks]
    return [
        product_tree(ids[:depth], scores[:depth], budget.of(depth))
        for ids, scores, depth in zip(tokens, logprobs, depths, strict=True)
    ]
