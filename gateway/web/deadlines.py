"""Cancels the task that answers when its caller hangs up or a deadline passes, whatever it awaits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from starlette.types import Receive

from gateway.errors import ApiError, ClientGone, TimedOut

Reason = Literal["gone", "first token", "idle", "total"]

TIMER_SLACK_S = 0.005
"""Event loops may fire a timer this much early."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one answer may take, seconds. None: somebody else enforces it."""

    first_token_s: float | None
    idle_s: float | None
    total_s: float


class Watch:
    """Watches one call for the task that makes it; `close` it before that task goes on to other things.

    One timer per call: progress only moves a mark, and the timer looks at it when it fires.
    """

    __slots__ = (
        "_armed_s", "_limits", "_listener", "_loop", "_mark_s", "_started_s", "_task", "_timer",
        "has_progressed", "is_sending", "reason",
    )  # fmt: skip

    def __init__(self, total_s: float) -> None:
        """Starts the clock for the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._started_s = self._mark_s = self._loop.time()
        self._limits = Limits(None, None, total_s)
        self._listener: asyncio.Task[None] | None = None
        self._armed_s = self._started_s + total_s
        self._timer = self._loop.call_at(self._armed_s, self._look)
        self.has_progressed = False
        self.is_sending = False  # while true the reader keeps us waiting, not the model
        self.reason: Reason | None = None

    def listen(self, receive: Receive) -> None:
        """From now on notice that the caller hung up. The body must have been read."""
        self._listener = self._loop.create_task(self._await_disconnect(receive))

    def expect(self, limits: Limits) -> None:
        """The model is being asked: its limits count from now; the total counts from the start."""
        self._limits = limits
        self._mark_s = self._loop.time()
        self._reschedule()

    def progress(self) -> None:
        """The model gave something."""
        self._mark_s = self._loop.time()
        if not self.has_progressed:
            self.has_progressed = True
            self._reschedule()

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()

    def error(self) -> ApiError:
        """What the caller is told when `reason` is set; also takes back the cancellation of the task."""
        self._task.uncancel()
        if self.reason == "gone":
            return ClientGone("The client left before the answer was complete.")
        limits = self._limits
        if self.reason == "first token":
            text = f"The model gave no first token within {limits.first_token_s:g} s"
        elif self.reason == "idle":
            text = f"The model gave nothing for {limits.idle_s:g} s"
        else:
            text = f"The answer was not complete within {limits.total_s:g} s"
        return TimedOut(f"{text}. Try again, or ask for fewer tokens.")

    def _allowed_s(self) -> float | None:
        return self._limits.idle_s if self.has_progressed else self._limits.first_token_s

    def _due_s(self) -> float:
        total_due_s = self._started_s + self._limits.total_s
        allowed_s = self._allowed_s()
        return total_due_s if allowed_s is None else min(total_due_s, self._mark_s + allowed_s)

    def _reschedule(self) -> None:
        due_s = self._due_s()
        if due_s < self._armed_s:  # a timer that fires too early looks and goes on
            self._timer.cancel()
            self._arm(due_s)

    def _arm(self, due_s: float) -> None:
        self._armed_s = due_s
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        now_s = self._loop.time() + TIMER_SLACK_S
        if now_s >= self._started_s + self._limits.total_s:
            self._fire("total")
            return
        if self.is_sending:
            self._mark_s = now_s
        if now_s >= self._due_s():
            self._fire("idle" if self.has_progressed else "first token")
        else:
            self._arm(self._due_s())

    def _fire(self, reason: Reason) -> None:
        if self.reason is None:
            self.reason = reason
            self._task.cancel()

    async def _await_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._fire("gone")
