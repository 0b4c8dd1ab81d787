"""Drafts of a Mixture-of-Attentions head, which sees the streams behind all of the target's layers.

Of these it keeps, at every slot of KV memory, the keys and values that its attentions make of them: right for
known prefixes and after preemption, and nothing is to be freed. They are made when somebody asks for drafts,
or when many wait to be made. Where that takes more time than drafts save, it is left for a while. Pages of
that time, and those of sequences that are not followed, stay unread: drafts do without them, but not without
the last two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.kv.manager import pages_for
from backend.kv.storage import KVStorage
from backend.layers.step_input import StepInput
from backend.speculative.base import LEAST_REACHED
from backend.speculative.following import Following
from backend.speculative.mixture_network import CROSS, SELF, MixtureNetwork
from backend.speculative.round_kv import Ints, RoundKV, RoundShape, gather, page_table
from backend.speculative.round_layer import Angles
from backend.speculative.work_clock import work_clock
from backend.types import PAGE_TOKENS, Plan, ScheduledChunk, Sequence

MOST_WAITING = 512
"""Tokens whose streams wait to be read."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What one step gave: T tokens of sequences that are followed."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [T]
    streams: Tensor  # [T, layers, D]
    longest: int  # of their contexts

    def select(self, rows: Tensor) -> _Waiting:
        """Some of them."""
        chosen = (self.token_ids[rows], self.positions[rows], self.slots[rows], self.streams[rows])
        return _Waiting(*chosen, self.longest)


class MixtureDrafter:
    """Chains from a MixtureNetwork; also a StepObserver and a Follower. Keeps nothing of any sequence."""

    name = "mixture_of_attentions"
    is_cheap = False

    def __init__(self, network: MixtureNetwork, storage: KVStorage, target: KVStorage) -> None:
        """`storage`: by `network.kv_layout`, with as many pages as `target`, the target's own."""
        self.following = Following(work_clock(target.layers[0].device))
        self._network = network
        self._storage = storage
        self._target_layers = target.layers[len(target.layers) - len(network.target_layers) :]
        self._waiting: list[_Waiting] = []
        self._num_waiting = 0
        self._is_read = np.zeros(target.num_pages, dtype=bool)  # pages of which all tokens were
        self._rests = False  # as of the last step seen

    @property
    def wants_layers(self) -> bool:
        """See StepObserver."""
        return bool(self.following.sequences) and not self.following.is_resting

    def see(self, plan: Plan, step: StepInput, layers: list[Tensor], hidden: Tensor) -> None:
        """See StepObserver."""
        is_resting = self.following.is_resting
        if is_resting and not self._rests:
            self._begin_rest()
        self._rests = is_resting
        wanted = set() if is_resting else self.following.sequences
        followed = [chunk.sequence in wanted for chunk in plan.chunks]
        self._mark(plan.chunks, followed)
        if any(followed):
            with self.following.reading(), self._marks_are_true():
                self._keep(step, [*layers, hidden], followed)

    @contextmanager
    def _marks_are_true(self) -> Iterator[None]:
        """Where what is inside fails, nothing counts as read: some that was marked may not be there."""
        try:
            yield
        except Exception:
            self._is_read[:] = False
            self._waiting, self._num_waiting = [], 0
            raise

    def _begin_rest(self) -> None:
        """Pages that are going on will not be read to their ends."""
        with self._marks_are_true():
            self._remember()
        for sequence in self.following.sequences:
            self._is_read[sequence.pages[sequence.num_computed_tokens // PAGE_TOKENS :]] = False

    def _mark(self, chunks: list[ScheduledChunk], followed: list[bool]) -> None:
        """Note what becomes of pages that begin here: those going on are what they were."""
        read: list[int] = []
        unread: list[int] = []
        for chunk, is_read in zip(chunks, followed, strict=True):
            first = pages_for(chunk.start)
            if first * PAGE_TOKENS < chunk.end:
                (read if is_read else unread).extend(chunk.sequence.pages[first : pages_for(chunk.end)])
        if read:
            self._is_read[read] = True
        if unread:
            self._is_read[unread] = False

    def _keep(self, step: StepInput, layers: list[Tensor], followed: list[bool]) -> None:
        longest = max(step.context_lens)
        if all(followed):
            streams = torch.stack(layers, dim=1)
            waiting = _Waiting(step.token_ids, step.positions, step.slots, streams, longest)
        else:
            numbers = np.flatnonzero(np.repeat(followed, step.query_lens))
            rows = torch.from_numpy(numbers).to(step.slots.device)
            streams = torch.stack([layer[rows] for layer in layers], dim=1)
            waiting = _Waiting(step.token_ids[rows], step.positions[rows], step.slots[rows], streams, longest)
        self._waiting.append(waiting)
        self._num_waiting += len(waiting.slots)
        if self._num_waiting >= MOST_WAITING:
            self._remember()

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """See Drafter."""
        drafts: list[list[int]] = [[] for _ in sequences]
        ready = [i for i, sequence in enumerate(sequences) if self._knows_latest(sequence)]
        if ready:
            with self.following.reading(), self._marks_are_true():
                self._remember()
            found = self._round([sequences[i] for i in ready], [ks[i] for i in ready])
            for i, draft in zip(ready, found, strict=True):
                drafts[i] = draft
        return drafts

    def _knows_latest(self, sequence: Sequence) -> bool:
        """Whether the last two pages were read: after one alone, which may just begin, few are right."""
        last = (sequence.num_computed_tokens - 1) // PAGE_TOKENS
        return bool(self._is_read[sequence.pages[max(0, last - 1) : last + 1]].all())

    def _round(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        shape = RoundShape([s.num_computed_tokens for s in sequences], [1] * len(sequences), max(ks) - 1)
        table = page_table([sequence.pages for sequence in sequences], pages_for(shape.longest) * PAGE_TOKENS)
        own, target = self._gather(table, shape)
        network, device = self._network, self._storage.layout.device
        tokens = torch.tensor([sequence.tokens[-1] for sequence in sequences], device=device)
        _, mask = shape.masks(network.embedded.dtype, device)
        own_mask = self._without_gaps(table, shape, mask)
        drafts: list[Tensor] = []
        reached = torch.ones(len(sequences), device=device)
        for column, (ours, theirs) in enumerate(self._angles(shape), start=shape.longest):
            if drafts and reached.max().item() < LEAST_REACHED:
                break
            x = network.enter(tokens, own, shape.longest, column, ours, _up_to(own_mask, column))
            tokens, likely = network.finish(x, target, column, theirs, _up_to(mask, column))
            drafts.append(tokens)
            reached *= likely
        found: list[list[int]] = torch.stack(drafts, dim=1).tolist()
        return [draft[:k] for draft, k in zip(found, ks, strict=True)]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing was kept."""

    def _without_gaps(self, table: Ints, shape: RoundShape, mask: Tensor | None) -> Tensor | None:
        """The mask of the head's own attentions, which must not see what was not read."""
        num_pages = np.array([pages_for(known) for known in shape.known])
        unread = ~self._is_read[table] & (np.arange(table.shape[1]) < num_pages[:, None])
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

    @torch.inference_mode()
    def _remember(self) -> None:
        """Make keys and values of what waits."""
        if not self._waiting:
            return
        each, self._waiting, self._num_waiting = self._waiting, [], 0
        waiting = each[0] if len(each) == 1 else _newest(each)
        own, memory = self._network.remember(
            waiting.token_ids, waiting.positions, waiting.longest, waiting.streams
        )
        self._storage.write(SELF, waiting.slots, own)
        # What is multiplied by 0 must leave no trace.
        self._storage.write(CROSS, waiting.slots, torch.nan_to_num_(memory))


def _newest(each: list[_Waiting]) -> _Waiting:
    """Of all slots what was written there last."""
    slots = torch.cat([waiting.slots for waiting in each])
    _, newest = np.unique(slots.flip(0).cpu().numpy(), return_index=True)
    together = _Waiting(
        torch.cat([waiting.token_ids for waiting in each]),
        torch.cat([waiting.positions for waiting in each]),
        slots,
        torch.cat([waiting.streams for waiting in each]),
        max(waiting.longest for waiting in each),
    )
    return together.select(torch.from_numpy(len(slots) - 1 - newest).to(slots.device))


def _up_to(mask: Tensor | None, column: int) -> Tensor | None:
    return None if mask is None else mask[..., : column + 1]
