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
from backend.speculative.heads import HeadReader, HeadShape, read_shape
from backend.speculative.hidden_states import HiddenStates, slots_in
from backend.types import Sequence


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

    @property
    def num_heads(self) -> int:
        """Tokens that can be proposed."""
        return self.output.shape[0]

    def logits(self, states: Tensor, num_heads: int) -> Tensor:
        """Residual streams [B, D] → [num_heads, B, vocabulary]."""
        hidden = self.target_norm(states)
        x = hidden.expand(num_heads, *hidden.shape)
        for weight, bias in self.blocks:
            x = x + F.silu(torch.baddbmm(bias[:num_heads], x, weight[:num_heads]))
        x = torch.bmm(x, self.output[:num_heads])
        return self.head(x.flatten(0, 1)).view(num_heads, len(states), -1)


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
        )


class MedusaDrafter:
    """Chains of each head's likeliest token. Keeps nothing of any sequence."""

    name = "medusa"
    is_cheap = False

    def __init__(self, network: MedusaNetwork, states: HiddenStates) -> None:
        self._network = network
        self._states = states

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """See Drafter."""
        slots = [slots_in(sequence, [sequence.num_computed_tokens - 1])[0] for sequence in sequences]
        num_heads = min(max(ks), self._network.num_heads)
        logits = self._network.logits(self._states.at(slots), num_heads)
        drafts: list[list[int]] = logits.argmax(dim=-1).mT.tolist()
        return [draft[:k] for draft, k in zip(drafts, ks, strict=True)]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing was kept."""
