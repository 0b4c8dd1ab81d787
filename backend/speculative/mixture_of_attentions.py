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

import numpy as np
import torch
from torch import Tensor

from backend.kv.manager import pages_for
from backend.layers.step_input import StepInput
from backend.speculative import MIN_PATH_PROBABILITY
from backend.speculative.draft_length import step_clock
from backend.speculative.drafter import Capture
from backend.speculative.mixture_rounds import MixtureRounds, Verified
from backend.types import PAGE_TOKENS, Plan, ScheduledChunk, Sequence

MOST_WAITING = 512
"""Tokens whose streams wait to be read."""


class MixtureDrafter:
    """Chains from MixtureRounds; also a StepObserver and a Follower. Keeps nothing of any sequence."""

    name = "mixture_of_attentions"
    is_cheap = False

    def __init__(self, rounds: MixtureRounds, num_pages: int, device: torch.device) -> None:
        """`num_pages`: of the target's memory, which lies on this device."""
        self.capture = Capture(step_clock(device))
        self._rounds = rounds
        self._waiting: list[Verified] = []
        self._num_waiting = 0
        self._is_read = np.zeros(num_pages, dtype=bool)  # pages of which all tokens were
        self._rests = False  # as of the last step seen

    @property
    def wants_layers(self) -> bool:
        """See StepObserver."""
        return bool(self.capture.sequences) and self.capture.is_on

    def see(self, plan: Plan, step: StepInput, layers: list[Tensor], hidden: Tensor) -> None:
        """See StepObserver."""
        is_resting = not self.capture.is_on
        if is_resting and not self._rests:
            self._begin_rest()
        self._rests = is_resting
        wanted = set() if is_resting else self.capture.sequences
        self._mark(plan.chunks, wanted)
        if wanted:
            followed = [chunk.sequence in wanted for chunk in plan.chunks]
            if any(followed):
                with self.capture.timed(), self._marks_are_true():
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
        """Pages that are going on will not be read to their ends. What waits is made when reading goes on."""
        for sequence in self.capture.sequences:
            self._is_read[sequence.pages[sequence.num_computed_tokens // PAGE_TOKENS :]] = False

    def _mark(self, chunks: list[ScheduledChunk], wanted: set[Sequence]) -> None:
        """Note what becomes of pages that begin here: those going on are what they were."""
        for chunk in chunks:
            begin = chunk.start + -chunk.start % PAGE_TOKENS
            if begin < chunk.start + chunk.num_tokens:
                pages = chunk.sequence.pages[begin // PAGE_TOKENS : pages_for(chunk.end)]
                self._is_read[pages] = chunk.sequence in wanted

    def _keep(self, step: StepInput, layers: list[Tensor], followed: list[bool]) -> None:
        longest = max(step.context_lens)
        if all(followed):
            streams = torch.stack(layers, dim=1)
            waiting = Verified(step.token_ids, step.positions, step.slots, streams, longest)
        else:
            numbers = np.flatnonzero(np.repeat(followed, step.query_lens))
            rows = torch.from_numpy(numbers).to(step.slots.device)
            streams = torch.stack([layer[rows] for layer in layers], dim=1)
            waiting = Verified(step.token_ids[rows], step.positions[rows], step.slots[rows], streams, longest)
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
            with self.capture.timed(), self._marks_are_true():
                self._remember()
            num_tokens = max(ks[i] for i in ready)
            asked = [sequences[i] for i in ready]
            found = self._rounds.draft(asked, self._is_read, num_tokens, MIN_PATH_PROBABILITY)
            for i, draft in zip(ready, found, strict=True):
                drafts[i] = draft[: ks[i]]
        return drafts

    def _knows_latest(self, sequence: Sequence) -> bool:
        """Whether the last two pages were read: after one alone, which may just begin, few are right."""
        last = (sequence.num_computed_tokens - 1) // PAGE_TOKENS
        return bool(self._is_read[sequence.pages[max(0, last - 1) : last + 1]].all())

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing was kept."""

    def _remember(self) -> None:
        """Make keys and values of what waits."""
        if self._waiting:
            each, self._waiting, self._num_waiting = self._waiting, [], 0
            self._rounds.remember(each[0] if len(each) == 1 else _newest(each))


def _newest(each: list[Verified]) -> Verified:
    """Of all slots what was written there last."""
    slots = torch.cat([waiting.slots for waiting in each])
    _, newest = np.unique(slots.flip(0).cpu().numpy(), return_index=True)
    together = Verified(
        torch.cat([waiting.token_ids for waiting in each]),
        torch.cat([waiting.positions for waiting in each]),
        slots,
        torch.cat([waiting.streams for waiting in each]),
        max(waiting.longest for waiting in each),
    )
    return together.select(torch.from_numpy(len(slots) - 1 - newest).to(slots.device))
