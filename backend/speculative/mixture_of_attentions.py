"""Drafts of a Mixture-of-Attentions head, which sees the streams behind all of the target's layers.

Of these it keeps, at every slot of KV memory, the keys and values that its attentions make of them: right for
known prefixes and after preemption, and nothing is to be freed. They are made when somebody asks for drafts,
or when many wait to be made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.kv.manager import pages_for
from backend.kv.storage import KVStorage
from backend.layers.step_input import StepInput
from backend.speculative.mixture_network import CROSS, SELF, MixtureNetwork
from backend.speculative.round_kv import RoundKV, RoundShape, gather, page_table
from backend.speculative.round_layer import Angles
from backend.types import PAGE_TOKENS, Plan, Sequence

MOST_WAITING = 512
"""Tokens whose streams wait to be read."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What one step gave."""

    step: StepInput
    streams: Tensor  # [T, layers, D]


class MixtureDrafter:
    """Chains from a MixtureNetwork; also a StepObserver. Keeps nothing of any sequence."""

    name = "mixture_of_attentions"
    is_cheap = False

    def __init__(self, network: MixtureNetwork, storage: KVStorage, target: KVStorage) -> None:
        """`storage`: by `network.kv_layout`, with as many pages as `target`, the target's own."""
        self._network = network
        self._storage = storage
        self._target_layers = target.layers[len(target.layers) - len(network.target_layers) :]
        self._waiting: list[_Waiting] = []

    def see(self, plan: Plan, step: StepInput, layers: list[Tensor], hidden: Tensor) -> None:
        """See StepObserver."""
        self._waiting.append(_Waiting(step, torch.stack([*layers, hidden], dim=1)))
        if sum(waiting.step.num_tokens for waiting in self._waiting) >= MOST_WAITING:
            self._remember()

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """See Drafter."""
        self._remember()
        shape = RoundShape([s.num_computed_tokens for s in sequences], [1] * len(sequences), max(ks) - 1)
        own, target = self._gather([sequence.pages for sequence in sequences], shape)
        network, device = self._network, self._storage.layout.device
        tokens = torch.tensor([sequence.tokens[-1] for sequence in sequences], device=device)
        _, mask = shape.masks(network.embedded.dtype, device)
        drafts: list[Tensor] = []
        for column, (ours, theirs) in enumerate(self._angles(shape), start=shape.longest):
            hidden = None if mask is None else mask[..., : column + 1]
            x = network.enter(tokens, own, shape.longest, column, ours, hidden)
            tokens = network.finish(x, target, column, theirs, hidden)
            drafts.append(tokens)
        found: list[list[int]] = torch.stack(drafts, dim=1).tolist()
        return [draft[:k] for draft, k in zip(found, ks, strict=True)]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing was kept."""

    def _gather(self, pages: list[list[int]], shape: RoundShape) -> tuple[list[RoundKV], list[RoundKV]]:
        """What the head's own attentions and the target's last layers know of these sequences."""
        device, dtype = self._storage.layout.device, self._network.embedded.dtype
        table = page_table(pages, pages_for(shape.longest) * PAGE_TOKENS)
        numbers = torch.from_numpy(table.reshape(-1)).to(device)
        own, target = (
            [gather(layer, numbers, shape, dtype) for layer in layers]
            for layers in (self._storage.layers, self._target_layers)
        )
        return own, target

    def _angles(self, shape: RoundShape) -> list[tuple[Angles, Angles]]:
        """For each token of a round those of the head and those of the target."""
        network, count = self._network, len(shape.known)
        positions = torch.from_numpy(shape.positions().T.reshape(-1)).to(self._storage.layout.device)
        longest = shape.columns
        ours, theirs = network.own_angles(positions, longest), network.target_angles(positions, longest)
        return list(zip(ours.passes(count, count), theirs.passes(count, count), strict=True))

    @torch.inference_mode()
    def _remember(self) -> None:
        """Make keys and values of what waits. Where a slot was written twice, the later is right."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        steps = [each.step for each in waiting]
        token_ids = torch.cat([step.token_ids for step in steps])
        positions = torch.cat([step.positions for step in steps])
        slots = torch.cat([step.slots for step in steps])
        streams = torch.cat([each.streams for each in waiting])
        if len(waiting) > 1:
            _, newest = np.unique(slots.flip(0).cpu().numpy(), return_index=True)
            last = torch.from_numpy(len(slots) - 1 - newest).to(slots.device)
            token_ids, positions, slots = token_ids[last], positions[last], slots[last]
            streams = streams[last]
        longest = max(max(step.context_lens) for step in steps)
        own, memory = self._network.remember(token_ids, positions, longest, streams)
        self._storage.write(SELF, slots, own)
        # What is multiplied by 0 must leave no trace.
        self._storage.write(CROSS, slots, torch.nan_to_num_(memory))
