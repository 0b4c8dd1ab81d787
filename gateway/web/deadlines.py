"""Cancels the handler's task when its client disconnects or a deadline passes, whatever it awaits."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from starlette.types import Receive

from gateway.errors import ApiError, Cancelled, ClientGone, TimedOut

CancelReason = Literal["disconnect", "first token", "idle", "total", "operator"]

TIMER_SLACK_S = 0.005
"""Event loops may fire a timer this much early."""


class TimeLimits(msgspec.Struct, frozen=True, gc=False):
    """How long one answer may take, in seconds. None: the provider enforces that limit itself."""

    first_token_s: float | None
    idle_s: float | None  # between two pieces of output
    total_s: float


class Deadlines:
    """The deadlines of one request; cancels the task that constructs it. `close` it when that is done.

    One timer per request: output only moves a timestamp, which the timer checks when it fires.
    """

    __slots__ = (
        "_armed_s", "_has_output", "_is_paused", "_limits", "_listener", "_loop", "_mark_s", "_started_s",
        "_task", "_timer", "cancel_reason",
    )  # fmt: skip

    def __init__(self, total_s: float) -> None:
        """Start the clock; `total_s` holds until a model call sets its own limits."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("deadlines cancel the task that constructs them: there is none")
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._started_s = self._mark_s = self._loop.time()
        self._limits = TimeLimits(None, None, total_s)
        self._listener: asyncio.Task[None] | None = None
        self._armed_s = self._started_s + total_s
        self._timer = self._loop.call_at(self._armed_s, self._on_timer)
        self._has_output = False
        self._is_paused = False
        self.cancel_reason: CancelReason | None = None

    def watch_disconnect(self, receive: Receive) -> None:
        """Cancel the task when the client disconnects. Only after the body has been read."""
        self._listener = self._loop.create_task(self._await_disconnect(receive))

    def start_model_call(self, limits: TimeLimits) -> None:
        """Apply the model's limits, counted from now: another model's call may have taken all of its own."""
        self._limits = limits
        self._started_s = self._mark_s = self._loop.time()
        self._reschedule()

    def left_s(self) -> float:
        """Seconds until the total limit."""
        return self._started_s + self._limits.total_s - self._loop.time()

    def record_output(self) -> None:
        """The model produced something: restart the idle limit."""
        self._mark_s = self._loop.time()
        if not self._has_output:
            self._has_output = True
            if self._limits.idle_s is not None:
                self._reschedule()

    def pause_idle(self) -> None:
        """Stop the idle limit while a write waits for a slow client: the model is not to blame."""
        self._is_paused = True

    def resume_idle(self) -> None:
        """The write is done: restart the idle limit."""
        self._is_paused = False
        self._mark_s = self._loop.time()

    def cancel(self) -> None:
        """End the answer, as an operator wishes, unless it has ended."""
        if not self._timer.cancelled():
            self._cancel_task("operator")

    def close(self) -> None:
        """Cancel nothing from now on."""
        self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None  # its exception refers to this object

    def error(self) -> ApiError:
        """The error for the client once `cancel_reason` is set; also withdraws the task's cancellation."""
        self._task.uncancel()
        if self.cancel_reason == "disconnect":
            return ClientGone("The client left before the answer was complete.")
        if self.cancel_reason == "operator":
            return Cancelled(
                "The gateway's operator has cancelled this request. Ask them before it is sent again."
            )
        limits = self._limits
        if self.cancel_reason == "first token":
            text = f"The model gave no first token within {limits.first_token_s:g} s"
        elif self.cancel_reason == "idle":
            text = f"The model gave nothing for {limits.idle_s:g} s"
        else:
            text = f"The answer was not complete within {limits.total_s:g} s"
        return TimedOut(f"{text}. Try again, or ask for fewer tokens.")

    def _due_s(self) -> float:
        total_due_s = self._started_s + self._limits.total_s
        allowed_s = self._limits.idle_s if self._has_output else self._limits.first_token_s
        return total_due_s if allowed_s is None else min(total_due_s, self._mark_s + allowed_s)

    def _reschedule(self) -> None:
        due_s = self._due_s()
        if due_s < self._armed_s:  # a timer that fires too early re-arms itself
            self._timer.cancel()
            self._arm(due_s)

    def _arm(self, due_s: float) -> None:
        self._armed_s = due_s
        self._timer = self._loop.call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        now_s = self._loop.time() + TIMER_SLACK_S
        if now_s >= self._started_s + self._limits.total_s:
            self._cancel_task("total")
            return
        if self._is_paused:
            self._mark_s = now_s
        if now_s >= self._due_s():
            self._cancel_task("idle" if self._has_output else "first token")
        else:
            self._arm(self._due_s())

    def _cancel_task(self, reason: CancelReason) -> None:
        if self.cancel_reason is None:
            self.cancel_reason = reason
            self._task.cancel()

    async def _await_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._cancel_task("disconnect")
