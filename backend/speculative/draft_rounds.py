"""How a draft model computes what a round begins with and drafts: with torch, whatever the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend.kv.manager import pages_for
from backend.kv.storage import KVStorage
from backend.speculative.draft_network import DraftNetwork
from backend.speculative.round_kv import Ints, RoundKV, RoundShape, gather, page_table, slots_of
from backend.speculative.round_layer import Angles
from backend.types import PAGE_TOKENS, Sequence


class DraftRounds(Protocol):
    """Weights, keys and values of a draft model."""

    @property
    def max_position_tokens(self) -> int:
        """The longest sequence that it can compute."""
        ...

    def compute(
        self, owns: list[Sequence], begins: list[int], num_tokens: int, least_reached: float
    ) -> list[list[int]]:
        """Compute the next tokens of each sequence, `begins` of them, then append at most `num_tokens`.

        A chain ends with the token that, with those before it, is less than `least_reached` likely. Keys and
        values of all but each chain's last token are stored; pages for them are there.
        """
        ...


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A draft model that is computed operation by operation."""

    network: DraftNetwork

    @property
    def page_bytes(self) -> int:
        """Of its keys and values."""
        return self.network.kv_layout.page_bytes

    def open(self, num_pages: int) -> DraftRounds:
        """With memory of its own."""
        return TorchRounds(self.network, num_pages)


class TorchRounds:
    """See DraftRounds: all sequences in one pass per token."""

    def __init__(self, network: DraftNetwork, num_pages: int) -> None:
        self._network = network
        self._storage = KVStorage(network.kv_layout, num_pages + 1)
        self._trash = num_pages * PAGE_TOKENS  # slot of the page that nobody owns: padding goes there

    @property
    def max_position_tokens(self) -> int:
        """See DraftRounds."""
        return self._network.config.max_position_tokens

    @torch.inference_mode()
    def compute(
        self, owns: list[Sequence], begins: list[int], num_tokens: int, least_reached: float
    ) -> list[list[int]]:
        """See DraftRounds."""
        network, storage = self._network, self._storage
        shape = RoundShape([own.num_computed_tokens for own in owns], begins, max(0, num_tokens - 1))
        count, width = len(owns), shape.width
        positions = shape.positions()
        device = storage.layout.device
        table = page_table([own.pages for own in owns], int(positions.max()) + 1)
        pages = torch.from_numpy(table[:, : pages_for(shape.longest)].reshape(-1)).to(device)
        dtype = network.embedding.dtype
        kv = [gather(layer, pages, shape, dtype) for layer in storage.layers]
        first_mask, later_mask = shape.masks(dtype, device)
        steps = self._angles(positions, width)
        ids = [
            [0] * (width - begins) + own.tokens[known : known + begins]
            for own, known, begins in zip(owns, shape.known, shape.begins, strict=True)
        ]
        first = torch.tensor(ids, device=device).view(-1)
        hidden = network.forward(first, kv, shape.longest, steps[0], first_mask)
        if width > 1:
            hidden = hidden.view(count, width, -1)[:, -1]
        tokens, reached = network.best(hidden)
        drafts, likelihoods = [tokens], [reached]
        for number, angles in enumerate(steps[1:]):
            if likelihoods[-1].max().item() < least_reached:
                break
            column = shape.longest + width + number
            mask = None if later_mask is None else later_mask[..., : column + 1]
            tokens, likely = network.best(network.forward(tokens, kv, column, angles, mask))
            drafts.append(tokens)
            likelihoods.append(likelihoods[-1] * likely)
        computed = width + len(drafts) - 1
        slots = slots_of(table, positions[:, :computed], self._trash).reshape(-1)
        self._keep(kv, shape.longest, torch.from_numpy(slots).to(device))
        if num_tokens == 0:
            return [[] for _ in owns]
        chains = torch.stack(drafts, dim=1).tolist()
        lengths = 1 + (torch.stack(likelihoods)[:-1] >= least_reached).sum(dim=0)
        return [chain[:length] for chain, length in zip(chains, lengths.tolist(), strict=True)]

    def _angles(self, positions: Ints, width: int) -> list[tuple[Angles, ...]]:
        """For each pass of a round, by layer; `positions` [B, width + passes after the first]."""
        count = len(positions)
        # In the order of use: sequence by sequence first, then pass by pass.
        ordered = torch.cat(
            [
                torch.from_numpy(positions[:, :width]).reshape(-1),
                torch.from_numpy(positions[:, width:]).mT.reshape(-1),
            ]
        ).clamp_(min=0)
        found = self._network.angles(ordered.to(self._storage.layout.device), int(positions.max()) + 1)
        return list(zip(*(layer.passes(count * width, count) for layer in found), strict=True))

    def _keep(self, kv: list[RoundKV], start: int, slots: Tensor) -> None:
        """Store the columns from `start` on."""
        for layer, own in enumerate(kv):
            found = own.data[:, start : start + len(slots) // len(own.data)]
            self._storage.write(layer, slots, found.reshape(len(slots), -1, found.shape[-1]))
