"""Whether drafts have paid of late, all in all: what they promise may be wrong, and then they rest."""

from __future__ import annotations

from backend.speculative.step_costs import blend

_TRIAL_STEPS = 8
"""Steps with drafts for everybody who may have some before these are judged as a whole."""

_MOST_LOST = 3.0
"""Plain steps; a trial that has lost so much ends at once."""

_MOST_LOST_PER_STEP = 1.0
"""The same that one step is thought to lose: more was something else on the machine, or is not done often."""

_JUDGE_MEMORY = 0.95
"""Weight that older steps keep in the judgement."""

_LEAST_GAIN, _GOOD_GAIN = 0.95, 1.1
"""Drafts rest when they gave so many times the speed without, and are trusted anew when they gave more."""

_SHORT_REST_STEPS, _LONG_REST_STEPS = 48, 1024
"""For so many steps at first, and twice as many every other time."""


class Balance:
    """What drafts have given and taken at one size of the batch, both in steps without."""

    __slots__ = (
        "_gained",
        "_idle_steps",
        "_lost",
        "_next_rest_steps",
        "_num_steps",
        "_plain_s",
        "_rest_steps",
        "_spent",
    )

    def __init__(self) -> None:
        self._plain_s = 0.0
        self._gained = self._spent = 0.0
        self._lost = 0.0  # since the trial began, or since it had lost nothing
        self._num_steps = 0  # with drafts for all who may have some, since then
        self._rest_steps = 0
        self._idle_steps = 0  # without drafts, since nobody wanted any
        self._next_rest_steps = _SHORT_REST_STEPS

    @property
    def rest_steps(self) -> int:
        """So many steps are to be without drafts, for they have not paid of late."""
        return self._rest_steps

    @property
    def is_on_trial(self) -> bool:
        """Whether there were too few of late to judge them."""
        return self._num_steps < _TRIAL_STEPS

    def observe_plain(self, time_s: float) -> None:
        """A step without drafts."""
        self._plain_s = blend(self._plain_s, time_s)
        self.pass_by(1)

    def pass_by(self, num_steps: int) -> None:
        """So many steps without drafts."""
        self._rest_steps = max(0, self._rest_steps - num_steps)
        self._idle_steps += num_steps
        if self._idle_steps >= self._next_rest_steps:
            self._lost = 0.0
            if not self.is_on_trial:
                self._begin_trial()

    def observe(self, gain: float, time_s: float, *, is_partial: bool = False) -> float:
        """A step with drafts that gave `gain` times the tokens of one without; returns the seconds saved.

        `is_partial`: few sequences had some, to see what these take. That is not expected to pay.
        """
        if not self._plain_s:
            return 0.0
        spent = min(time_s / self._plain_s, gain + _MOST_LOST_PER_STEP)
        if self._rest_steps:
            return (gain - spent) * self._plain_s  # nobody chose to try
        self._idle_steps = 0
        if self.is_on_trial:
            self._lost = max(0.0, self._lost + spent - gain)
        if not is_partial:
            self._gained = _JUDGE_MEMORY * self._gained + gain
            self._spent = _JUDGE_MEMORY * self._spent + spent
            self._num_steps += 1
        self._judge()
        return (gain - spent) * self._plain_s

    def _judge(self) -> None:
        if self.is_on_trial:
            has_failed = self._lost > _MOST_LOST
        else:
            has_failed = self._gained < _LEAST_GAIN * self._spent
        if has_failed:
            self._rest_steps = self._next_rest_steps
            self._begin_trial()
        elif not self.is_on_trial and self._gained > _GOOD_GAIN * self._spent:
            self._next_rest_steps = _SHORT_REST_STEPS

    def _begin_trial(self) -> None:
        """The next one comes only after twice the time."""
        self._next_rest_steps = min(2 * self._next_rest_steps, _LONG_REST_STEPS)
        self._gained = self._spent = self._lost = 0.0
        self._num_steps = self._idle_steps = 0
