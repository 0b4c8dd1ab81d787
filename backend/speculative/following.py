"""Whether it pays to read along: what a drafter does in every step only to be able to draft later.

What a draft itself costs is in the time of its step, and LengthPolicy weighs that. This is the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from backend.types import Sequence

_TRIAL_STEPS = 48
"""Steps read before it is judged, and again after as many; a trial may end sooner."""

_MOST_DECLINED = 3
"""A trial after a rest ends when drafts were not worth having so often in a row: the first time by what was
known before."""

_MOST_LOST = 0.005
"""… and when it has lost such a share of the time of the rest."""

_MEMORY = 0.5
"""Weight that what was before keeps in the next judgement."""

_SHORT_REST_STEPS, _LONG_REST_STEPS = 512, 8192
"""Not to read for so many steps at first, and twice as many every other time. Some reading and two steps with
drafts lose about 0.5 % of the first."""

_FEW, _EVERY = 4, 4
"""Until reading has paid, so many sequences are read, and besides one in so many that come: all their prompts
would be much to pay for a trial."""

_BROAD_EVERY = 3
"""Of trials in a row every so manyth reads all: what one draft takes as well as many pays only with many."""

_GOOD = 2.0
"""Reading is trusted anew when drafts saved so many times what it took."""


class _Account:
    """The time that drafts have saved against the time that reading took, in batches of one size."""

    def __init__(self) -> None:
        self.reads_all = False  # once it has paid, or to see whether it would then
        self._spent_s = self._saved_s = 0.0
        self._num_read = 0
        self._rest_steps = 0
        self._next_rest_steps = _SHORT_REST_STEPS
        self._num_failed = 0  # trials, since it paid
        self._is_on_trial = True
        self._num_declined = 0  # times in a row
        self._rested_s = math.inf  # the last time; there was none before the very first trial

    @property
    def is_resting(self) -> bool:
        return self._rest_steps > 0

    def save(self, time_s: float) -> None:
        self._saved_s += time_s
        self._num_declined = 0

    def decline(self) -> None:
        self._num_declined += 1

    def pass_by(self, time_s: float) -> None:
        if self.is_resting:
            self._rest_steps -= 1
            self._rested_s += time_s

    def spend(self, time_s: float) -> None:
        """A step that was read is over."""
        self._spent_s += time_s
        self._num_read += 1
        if self._num_read >= _TRIAL_STEPS or self._has_failed():
            self._judge()

    def _has_failed(self) -> bool:
        """Whether a trial is to end at once."""
        if not self._is_on_trial or self._rested_s == math.inf:
            return False
        lost_s = self._spent_s - self._saved_s
        return lost_s > _MOST_LOST * self._rested_s or self._num_declined >= _MOST_DECLINED

    def _judge(self) -> None:
        self._num_read = self._num_declined = 0
        has_paid = self._saved_s >= self._spent_s
        self._is_on_trial = not has_paid
        self._num_failed = 0 if has_paid else self._num_failed + 1
        self.reads_all = has_paid or self._num_failed % _BROAD_EVERY == _BROAD_EVERY - 1
        if not has_paid:
            self._rest_steps = self._next_rest_steps
            self._next_rest_steps = min(2 * self._next_rest_steps, _LONG_REST_STEPS)
            self._spent_s = self._saved_s = self._rested_s = 0.0
            return
        if self._saved_s > _GOOD * self._spent_s:
            self._next_rest_steps = _SHORT_REST_STEPS
        self._spent_s *= _MEMORY
        self._saved_s *= _MEMORY


class Following:
    """Whom to read, and whether: in a large batch reading may not pay that does in a small one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self.sequences: set[Sequence] = set()  # who may ask for drafts: nobody else need be read
        self.step_s = 0.0  # spent on reading since the present step began
        self._clock = clock
        self._accounts: dict[int, _Account] = {}  # by size of the batch: each up to twice the one before
        self._account = self._accounts.setdefault(0, _Account())  # of the present step
        self._turned_away = 0  # since the last that was not

    def admit(self, sequence: Sequence) -> bool:
        """Whether to read this new one, when reading does not rest.

        Few, where it has not paid; all, where it rests: then only in smaller batches, which hold few.
        """
        self._turned_away += 1
        reads_all = self._account.reads_all or self.is_resting
        if not reads_all and len(self.sequences) >= _FEW and self._turned_away < _EVERY:
            return False
        self._turned_away = 0
        self.sequences.add(sequence)
        return True

    @property
    def is_resting(self) -> bool:
        """Whether reading has not paid of late in batches of this size, and is to be left."""
        return self._account.is_resting

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What happens inside is done for drafts that may come."""
        began_s = self._clock()
        yield
        self.step_s += self._clock() - began_s

    def save(self, time_s: float) -> None:
        """Drafts made the present step worth so much more time than it took; less, if negative."""
        self._account.save(time_s)

    def decline(self) -> None:
        """Drafts would not have been worth more time than they take: reading for these is not either."""
        self._account.decline()

    def pass_by(self, time_s: float) -> None:
        """The present step has taken so long."""
        self._account.pass_by(time_s)

    def begin_step(self, num_present: int) -> None:
        """The step before is over; in the next so many sequences run, or begin to."""
        if self.step_s:
            self._account.spend(self.step_s)
            self.step_s = 0.0
        size = max(0, num_present - 1).bit_length()
        if size not in self._accounts:
            self._accounts[size] = _Account()
        self._account = self._accounts[size]


@runtime_checkable
class Follower(Protocol):
    """A drafter that reads along while it pays."""

    @property
    def name(self) -> str:
        """See Drafter."""
        ...

    @property
    def following(self) -> Following:
        """Its own account. The Speculator says who may ask, when steps begin and what they took, what drafts
        saved, and when they were not worth having."""
        ...
