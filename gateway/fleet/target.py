"""One place that answers for a model, and the calls that it is given."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from gateway.answer import Answer, Generated, Relayed, close_source
from gateway.errors import ApiError, TimedOut
from gateway.fleet.health import Health, trouble_of
from gateway.fleet.latency import PeakLatency
from gateway.fleet.retries import failure_class
from gateway.providers.base import Provider

T = TypeVar("T")
MIN_LATENCY_S = 0.001
"""Below it targets are equal, and only what they have to do counts."""

LONG_WAIT_S = 30.0
"""A call that is left after so long without any content counts as one that failed."""


class Target:
    """A provider with what is known of it."""

    def __init__(
        self,
        provider: Provider,
        health: Health,
        *,
        place: str = "",
        weight: float = 1.0,
        max_concurrent: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`place` identifies it among those of its model, `weight` is its capacity beside theirs."""
        self.provider = provider
        self.health = health
        self.place = place
        self.max_concurrent = max_concurrent
        self.num_running = 0
        self.latency = PeakLatency(clock)
        self.clock = clock
        self.on_begun: Callable[[float], None] | None = None
        self._weight = weight

    @property
    def is_full(self) -> bool:
        """Whether it has as many calls as it may have."""
        return self.max_concurrent is not None and self.num_running >= self.max_concurrent

    @property
    def may_be_asked(self) -> bool:
        """Whether it is neither full nor left out after failures."""
        return not self.is_full and self.health.trouble is None

    def load(self) -> float:
        """The time that a further call would wait, as far as one can tell."""
        return max(MIN_LATENCY_S, self.latency.value_s()) * (self.num_running + 1) / self._weight

    def begin(self) -> TargetCall:
        """Begin a call, which must be ended."""
        return TargetCall(self)


class TargetCall:
    """One call: tells the target how it went, once."""

    __slots__ = ("_began_s", "_has_begun", "_is_open", "_is_probe", "_num_pauses", "_target")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._is_probe = target.health.begin()
        self._num_pauses = target.health.num_pauses
        self._began_s = target.clock()
        self._is_open = True
        self._has_begun = False  # the answer
        target.num_running += 1

    def follow(self, answer: Answer) -> Answer:
        """The answer, of which the first content is there; the call ends with it."""
        self._has_begun = True
        self._target.health.answered(self._num_pauses)
        took_s = self._took_s()
        self._target.latency.answered(took_s)
        if self._target.on_begun is not None:
            self._target.on_begun(took_s)
        if isinstance(answer, Generated):
            answer.deltas = _Followed(answer.deltas, self)
        elif isinstance(answer, Relayed) and not isinstance(answer.body, bytes):
            answer.body = _Followed(answer.body, self)
        else:
            self.complete()
        return answer

    def complete(self) -> None:
        """The answer is there."""
        if self._close():
            self._target.health.completed()

    def fail(self, error: ApiError) -> None:
        """The call failed, or its answer broke off."""
        if not self._close():
            return
        self._target.health.on_failure(failure_class(error))
        trouble = trouble_of(error)
        if trouble is None:
            self._target.health.answered(self._num_pauses)
            self._target.health.completed()
            self._target.latency.answered(self._took_s())
        else:
            self._target.latency.failed(self._took_s())
            self._target.health.failed(trouble, error, is_probe=self._is_probe)

    def abandon(self) -> None:
        """The client has left, or nothing waits for the answer any more."""
        if not self._close():
            return
        took_s = self._took_s()
        if not self._has_begun:
            self._target.latency.waited(took_s)
        if not self._has_begun and took_s >= LONG_WAIT_S:
            self._target.health.on_failure("timeout")
            self._target.health.failed("failing", TimedOut("left"), is_probe=self._is_probe)
        elif self._is_probe:
            self._target.health.abandoned()

    def _took_s(self) -> float:
        return self._target.clock() - self._began_s

    def _close(self) -> bool:
        was_open, self._is_open = self._is_open, False
        self._target.num_running -= was_open
        return was_open


class _Followed(AsyncIterator[T]):
    """The pieces of an answer; a class, so that closing one that was never read closes its source."""

    __slots__ = ("_call", "_pieces")

    def __init__(self, pieces: AsyncIterator[T], call: TargetCall) -> None:
        self._pieces = pieces
        self._call = call

    async def __anext__(self) -> T:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            self._call.complete()
            raise
        except ApiError as error:
            self._call.fail(error)
            raise

    async def aclose(self) -> None:
        """Stop before the end."""
        self._call.abandon()
        await close_source(self._pieces)
