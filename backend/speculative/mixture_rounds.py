"""How a Mixture-of-Attentions head remembers and drafts: with torch, whatever the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from backend.kernels.mixture_chain import Bools
from backend.kv.manager import pages_for
from backend.kv.storage import KVStorage
from backend.speculative.mixture_network import CROSS, SELF, MixtureNetwork
from backend.speculative.round_kv import Ints, RoundKV, RoundShape, gather, page_table
from backend.speculative.round_layer import Angles
from backend.types import PAGE_TOKENS, Sequence


@dataclass(frozen=True, slots=True)
class Verified:
    """T tokens that the target has computed."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [T]
    streams: Tensor  # [T, layers, D], behind each of its layers
    longest: int  # of their contexts

    def select(self, rows: Tensor) -> Verified:
        """Some of them."""
        chosen = (self.token_ids[rows], self.positions[rows], self.slots[rows], self.streams[rows])
        return Verified(*chosen, self.longest)


class MixtureRounds(Protocol):
    """Weights, and the keys and values of verified tokens."""

    def remember(self, verified: Verified) -> None:
        """Make and store them; no slot stands there twice."""
        ...

    def draft(
        self, sequences: list[Sequence], is_read: Bools, num_tokens: int, least_reached: float
    ) -> list[list[int]]:
        """At most so many tokens after the last of each sequence.

        `is_read`: of all pages; nothing is seen of others. A chain ends with the token that, with those
        before it, is less than `least_reached` likely.
        """
        ...


class MixtureHead(Protocol):
    """A head's weights, before it is known how much memory there is."""

    @property
    def page_bytes(self) -> int:
        """Of its keys and values."""
        ...

    def open(self, target: KVStorage) -> MixtureRounds:
        """With as many pages as `target`, the target's own."""
        ...


@dataclass(frozen=True, slots=True)
class TorchMixture:
    """A head that is computed operation by operation."""

    network: MixtureNetwork

    @property
    def page_bytes(self) -> int:
        """See MixtureHead."""
        return self.network.kv_layout.page_bytes

    def open(self, target: KVStorage) -> MixtureRounds:
        """See MixtureHead."""
        return TorchMixtureRounds(self.network, KVStorage(self.network.kv_layout, target.num_pages), target)


class TorchMixtureRounds:
    """See MixtureRounds: all sequences in one pass per token."""

    def __init__(self, network: MixtureNetwork, storage: KVStorage, target: KVStorage) -> None:
        self._network = network
        self._storage = storage
        self._target_layers = target.layers[len(target.layers) - len(network.target_layers) :]

    @torch.inference_mode()
    def remember(self, verified: Verified) -> None:
        """See MixtureRounds."""
        own, memory = self._network.remember(
            verified.token_ids, verified.positions, verified.longest, verified.streams
        )
        self._storage.write(SELF, verified.slots, own)
        # What is multiplied by 0 must leave no trace.
        self._storage.write(CROSS, verified.slots, torch.nan_to_num_(memory))

    @torch.inference_mode()
    def draft(
        self, sequences: list[Sequence], is_read: Bools, num_tokens: int, least_reached: float
    ) -> list[list[int]]:
        """See MixtureRounds."""
        shape = RoundShape([s.num_computed_tokens for s in sequences], [1] * len(sequences), num_tokens - 1)
        table = page_table([sequence.pages for sequence in sequences], pages_for(shape.longest) * PAGE_TOKENS)
        own, target = self._gather(table, shape)
        network, device = self._network, self._storage.layout.device
        tokens = torch.tensor([sequence.tokens[-1] for sequence in sequences], device=device)
        _, mask = shape.masks(network.embedded.dtype, device)
        own_mask = self._without_gaps(table, is_read, shape, mask)
        drafts: list[Tensor] = []
        likelihoods: list[Tensor] = []
        for column, (ours, theirs) in enumerate(self._angles(shape), start=shape.longest):
            if likelihoods and likelihoods[-1].max().item() < least_reached:
                break
            x = network.enter(tokens, own, shape.longest, column, ours, _up_to(own_mask, column))
            tokens, likely = network.finish(x, target, column, theirs, _up_to(mask, column))
            drafts.append(tokens)
            likelihoods.append(likelihoods[-1] * likely if likelihoods else likely)
        chains: list[list[int]] = torch.stack(drafts, dim=1).tolist()
        lengths = 1 + (torch.stack(likelihoods)[:-1] >= least_reached).sum(dim=0)
        return [chain[:length] for chain, length in zip(chains, lengths.tolist(), strict=True)]

    def _without_gaps(
        self, table: Ints, is_read: Bools, shape: RoundShape, mask: Tensor | None
    ) -> Tensor | None:
        """The mask of the head's own attentions, which must not see what was not read."""
        num_pages = np.array([pages_for(known) for known in shape.known])
        unread = ~is_read[table] & (np.arange(table.shape[1]) < num_pages[:, None])
        if not unread.any():
            return mask
        hidden = np.repeat(unread, PAGE_TOKENS, axis=1)[:, : shape.longest]
        dtype, device = self._network.embedded.dtype, self._storage.layout.device
        gaps = torch.zeros(len(hidden), 1, 1, shape.columns, dtype=dtype, device=device)
        own = gaps[:, 0, 0, : shape.longest]
        own.masked_fill_(torch.from_numpy(hidden).to(device), float("-inf"))
        return gaps if mask is None else gaps + mask

    def _gather(self, table: Ints, shape: RoundShape) -> tuple[list[RoundKV], list[RoundKV]]:
        """What the head's own attentions and the target's last layers know of these sequences."""
        device, dtype = self._storage.layout.device, self._network.embedded.dtype
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


def _up_to(mask: Tensor | None, column: int) -> Tensor | None:
    return None if mask is None else mask[..., : column + 1]
