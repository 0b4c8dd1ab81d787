"""Medusa heads (arXiv 2401.10774): head i reads the target's hidden state at t and proposes token t + 1 + i.

No keys, no values, no steps: one pass for all heads and sequences. Format: pico/drafters/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.layers.linear import Linear
from backend.layers.norm import RMSNorm
from backend.models import LoadedModel
from backend.models.weights import WeightReader
from backend.speculative import BRANCHES
from backend.speculative.heads import HeadReader, HeadShape, read_shape
from backend.speculative.hidden_states import HiddenStates, slots_in
from backend.speculative.target_parts import Guess, target_guess
from backend.speculative.tree import TreeBudget, product_tree
from backend.types import Draft, Sequence


class MedusaShape(HeadShape, frozen=True):
    """Its config.json."""

    heads: int
    blocks: int


@dataclass(frozen=True, slots=True)
class MedusaNetwork:
    """Weights and arithmetic; holds no state of any sequence."""

    blocks: list[
        tuple[Tensor, Tensor]
    ]  # weight [heads, D, D] as multiplied from the right, bias [heads, 1, D]
    output: Tensor  # [heads, D, D] as well
    target_norm: RMSNorm
    head: Linear  # the target's
    guess: Guess  # by the target's head

    @property
    def num_heads(self) -> int:
        """Tokens that can be proposed."""
        return self.output.shape[0]

    def predicted(self, states: Tensor, num_heads: int) -> Tensor:
        """Residual streams [B, D] → what each head makes of them, [num_heads, B, D]."""
        hidden = self.target_norm(states)
        x = hidden.expand(num_heads, *hidden.shape)
        for weight, bias in self.blocks:
            x = x + F.silu(torch.baddbmm(bias[:num_heads], x, weight[:num_heads]))
        return torch.bmm(x, self.output[:num_heads])


def load_medusa(folder: str, model: LoadedModel) -> MedusaNetwork:
    """The heads in `folder` on this target. Raises CheckpointError."""
    shape = read_shape(folder, MedusaShape, model)
    width, numbers = shape.hidden_size, range(shape.heads)
    with torch.inference_mode(), WeightReader(folder) as reader:
        head = HeadReader(reader, model)

        def matrices(name: str) -> Tensor:
            found = [head.tensor(f"heads.{number}.{name}.weight", width, width).mT for number in numbers]
            return head.place.tensor(torch.stack(found))

        def vectors(name: str) -> Tensor:
            found = [head.tensor(f"heads.{number}.{name}.bias", width) for number in numbers]
            return head.place.tensor(torch.stack(found)[:, None])

        names = [f"blocks.{block}" for block in range(shape.blocks)]
        return MedusaNetwork(
            blocks=[(matrices(name), vectors(name)) for name in names],
            output=matrices("output"),
            target_norm=model.decoder.final_norm,
            head=model.decoder.head,
            guess=target_guess(model, head.place, is_normed=True),
        )


class MedusaDrafter:
    """Chains of each head's likeliest token, or trees of its likeliest ones; keeps nothing of any sequence.

    Heads do not know what those before them said: in a tree, a head says the same after every path.
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
        """See Drafter."""
        slots = [slots_in(sequence, [sequence.num_computed_tokens - 1])[0] for sequence in sequences]
        num_heads = min(max(ks), self._network.num_heads)
        predicted = self._network.predicted(self._states.at(slots), num_heads)
        rows = predicted.flatten(0, 1)
        if self._trees is not None:
            logits = self._network.head(rows).view(num_heads, len(sequences), -1)
            return _trees(logits, ks, self._trees)
        tokens, _ = self._network.guess(rows)
        drafts: list[list[int]] = tokens.view(num_heads, -1).mT.tolist()
        return [draft[:k] for draft, k in zip(drafts, ks, strict=True)]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing was kept."""


def _trees(logits: Tensor, ks: list[int], budget: TreeBudget) -> list[Draft]:
    """The likeliest paths through what heads say, logits [heads, B, vocabulary]; each at most k deep."""
    best = F.log_softmax(logits.float(), dim=-1).topk(BRANCHES, dim=-1)
    tokens, logprobs = (values.transpose(0, 1).tolist() for values in (best.indices, best.values))
    depths = [min(k, len(logits)) for k in ks]
    return [
        product_tree(ids[:depth], scores[:depth], budget.of(depth))
        for ids, scores, depth in zip(tokens, logprobs, depths, strict=True)
    ]
