"""Medusa heads (arXiv 2401.10774): head i reads the target's hidden state at t and proposes token t + 1 + i.

No keys, no values: one pass for all heads and sequences. Format: pico/drafters/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.upload import upload
from backend.kv.manager import pages_for
from backend.models.decoder import Decoder
from backend.models.loaded import LoadedModel
from backend.models.weights import WeightReader
from backend.speculative.device_chains import Ahead, Chains, Level, RollOuts
from backend.speculative.drafter import Drafter
from backend.speculative.heads import HeadShape, HiddenStates, head_precision, read_shape, slots_of
from backend.speculative.rollout import Beam, roll_out
from backend.speculative.tree import TreeBudget
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
    config = read_shape(folder, MedusaShape, model)
    width, precision = config.hidden_size, head_precision(model)
    with torch.inference_mode(), WeightReader(folder) as reader:

        def stacked(name: str, *shape: int) -> Tensor:
            found = [reader.get(f"heads.{number}.{name}", shape) for number in range(config.heads)]
            return torch.stack(found).to(precision.device, precision.compute)

        def matrices(name: str) -> Tensor:
            return stacked(f"{name}.weight", width, width).mT.contiguous()

        names = [f"blocks.{block}" for block in range(config.blocks)]
        blocks = [(matrices(name), stacked(f"{name}.bias", width)[:, None]) for name in names]
        return MedusaNetwork(blocks, matrices("output"), model.decoder)


class MedusaDrafter(Drafter):
    """Chains or trees of the tokens that the heads propose; keeps nothing of any sequence."""

    name = "medusa"
    is_cheap = False

    def __init__(
        self,
        network: MedusaNetwork,
        states: HiddenStates,
        trees: TreeBudget | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        """`trees`: None for chains. `ahead`: these do not wait for a device."""
        self._network = network
        self._states = states
        self._trees = trees
        self._roll_outs = None if ahead is None or trees else RollOuts(ahead, self._begin, 0)

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        """A chain or tree from each sequence's last state, at most as deep as there are heads."""
        slots = [slots_of(sequence, [sequence.num_computed_tokens - 1])[0] for sequence in sequences]
        depths = [min(k, self._network.num_heads) for k in ks]
        device = self._network.output.device
        if self._roll_outs is not None:  # which reads no keys
            nothing, table = [0] * len(slots), np.zeros((len(slots), pages_for(max(depths))), dtype=np.int64)
            arrays, lengths = self._roll_outs.arrays(nothing, nothing, table, max(depths), np.array(slots))
            result = self._roll_outs.run(upload(arrays, device), lengths)
            return self._roll_outs.drafts(result, sequences, depths)
        index = torch.tensor(slots, device=device)
        logits = self._network.logits(self._states.at(index), max(depths))

        def advance(beam: Beam) -> Tensor:
            # A head does not know what those before it proposed: it says the same after every path.
            return logits[beam.level].repeat_interleave(beam.is_seen.shape[1], dim=0)

        return roll_out(logits[0], advance, depths, self._trees)

    def drop_cached(self) -> None:
        """Forget graphs: no sequence is stored."""
        if self._roll_outs is not None:
            self._roll_outs.drop()

    def _begin(self, chains: Chains) -> Level:
        logits = iter(self._network.logits(self._states.at(chains.others[0]), len(chains.slots)))
        return lambda _: next(logits)
