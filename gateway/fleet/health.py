"""Whether a target should be asked: it is left out for a while after failures, then one call probes it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal, get_args

from gateway.errors import ApiError
from gateway.fleet.board import Slot
from gateway.fleet.retries import TIME_LIMITS, FailureClass, cause_of, retry_after_s
from gateway.fleet.window import Window

logger = logging.getLogger(__name__)

Trouble = Literal["failing", "rate_limited", "key_refused"]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)

MAX_FAILURES_IN_ROW = 5
WINDOW_S = 10
MIN_CALLS = 20
MAX_FAILED_SHARE = 0.5
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 300.0
RATE_LIMITED_PAUSE_S = 10.0
"""After a 429 without a `retry-after`."""
KEY_PAUSE_S = 300.0
PROBE_S = 30.0
"""For this long one call is waited for, before another one probes the target too."""


def trouble_of(error: ApiError) -> Trouble | None:
    """What an error says about the target; None: it works, and the request is to blame."""
    if error.code == "upstream_authentication_error":
        return "key_refused"
    if (error.upstream_status or error.status) == 429:
        return "rate_limited"
    return "failing" if error.code in TIME_LIMITS or cause_of(error) is not None else None


class Health:
    """What is known of one target. A call of one that is out counts too: where nothing else is left."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
        slot: Slot | None = None,
    ) -> None:
        """`clock` measures pauses, `now_s` reads a `retry-after` that is a date.

        `slot`: where other workers read and write whether it is out; None: this one is alone.
        """
        self.name = name
        self.on_out: Callable[[Trouble], None] = lambda trouble: None
        self.on_failure: Callable[[FailureClass], None] = lambda kind: None
        self._clock = clock
        self._now_s = now_s
        self._window = Window(WINDOW_S, clock)
        self._failures_in_row = 0
        self._trouble: Trouble | None = None
        self._pauses_in_row = 0  # after failures
        self.out_until_s = 0.0
        self.num_pauses = 0
        self._slot = slot
        self._seen = (0.0, 0)

    @property
    def trouble(self) -> Trouble | None:
        """Why it is out; None: it may be asked, if only by one call to see whether it works again."""
        self._learn()
        return self._trouble if self._clock() < self.out_until_s else None

    def recent(self) -> tuple[int, int]:
        """Calls of the last WINDOW_S seconds, and how many of them failed."""
        self._window.now()
        return self._window.calls, self._window.marked

    def out_s(self) -> float:
        """How long it is left out yet."""
        self._learn()
        return max(0.0, self.out_until_s - self._clock())

    def begin(self) -> bool:
        """A call begins. Whether it is a probe: until it ends the target stays out for others."""
        self._learn()
        if self._trouble is None or self._clock() < self.out_until_s:
            return False
        self._set(self._trouble, self._clock() + PROBE_S)
        return True

    def abandoned(self) -> None:
        """The probe was cancelled, and says nothing: another call may be it."""
        self._set(self._trouble, self._clock())

    def answered(self, num_pauses: int) -> None:
        """The first content of an answer is there: the target works.

        `num_pauses`: of when its call began; a call from before a pause says nothing about the time after.
        """
        if self._trouble is not None and num_pauses == self.num_pauses:
            self._set(None, 0.0)
            self._pauses_in_row = 0

    def completed(self) -> None:
        """An answer is complete, or a request was refused that another target would refuse too."""
        self._failures_in_row = 0
        self._window.add(calls=1)

    def failed(self, trouble: Trouble, error: ApiError, *, is_probe: bool = False) -> None:
        """A call failed, or an answer broke off."""
        if trouble == "key_refused":
            logger.error("upstream %s refuses the gateway's key: not asked for %g s", self.name, KEY_PAUSE_S)
            self._leave_out(trouble, KEY_PAUSE_S)
        elif trouble == "rate_limited":
            asked_s = retry_after_s(error, self._now_s())
            pause_s = RATE_LIMITED_PAUSE_S if asked_s is None else min(asked_s, MAX_PAUSE_S)
            self._leave_out(trouble, pause_s)  # 0 s: it may be asked at once
        else:
            self._failures_in_row += 1
            self._window.add(calls=1, marked=1)
            if is_probe or (self._trouble is None and self._fails_often()):
                pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**self._pauses_in_row)
                self._pauses_in_row += 1
                logger.warning("upstream %s fails: not asked for %g s", self.name, pause_s)
                self._leave_out(trouble, pause_s)

    def _fails_often(self) -> bool:
        window = self._window
        is_share = window.calls >= MIN_CALLS and window.marked > MAX_FAILED_SHARE * window.calls
        return is_share or self._failures_in_row >= MAX_FAILURES_IN_ROW

    def _leave_out(self, trouble: Trouble, pause_s: float) -> None:
        self.num_pauses += 1
        self._set(trouble if pause_s > 0 else None, self._clock() + pause_s)
        if pause_s > 0:
            self.on_out(trouble)

    def _set(self, trouble: Trouble | None, until_s: float) -> None:
        self._trouble, self.out_until_s = trouble, until_s
        if self._slot is not None:
            self._seen = (until_s, 0 if trouble is None else 1 + TROUBLES.index(trouble))
            self._slot.write(*self._seen)

    def _learn(self) -> None:
        """Take over what another worker has found out since."""
        found = self._seen if self._slot is None else self._slot.read()
        if found != self._seen:
            self._seen = found
            self.out_until_s, why = found
            self._trouble = TROUBLES[why - 1] if why else None
            self.num_pauses += 1
