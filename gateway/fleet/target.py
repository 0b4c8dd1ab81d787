"""One place that answers for a model, and the calls that it is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from gateway.answer import Answer, Generated, Relayed
from gateway.errors import ApiError
from gateway.fleet.health import Health, trouble_of
from gateway.providers.base import Provider

T = TypeVar("T")


class Target:
    """A provider with what is known of it."""

    def __init__(self, provider: Provider, health: Health) -> None:
        self.provider = provider
        self.health = health

    def begin(self) -> TargetCall:
        """Begin a call, which must be ended."""
        return TargetCall(self)


class TargetCall:
    """One call: tells the target how it went, once."""

    __slots__ = ("_is_open", "_is_probe", "_num_pauses", "_target")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._is_probe = target.health.begin()
        self._num_pauses = target.health.num_pauses
        self._is_open = True

    def follow(self, answer: Answer) -> Answer:
        """The answer, of which the first content is there; the call ends with it."""
        self._target.health.answered(self._num_pauses)
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
        trouble = trouble_of(error)
        if trouble is None:
            self._target.health.answered(self._num_pauses)
            self._target.health.completed()
        else:
            self._target.health.failed(trouble, error, is_probe=self._is_probe)

    def abandon(self) -> None:
        """The client has left, or nothing waits for the answer any more."""
        if self._close() and self._is_probe:
            self._target.health.abandoned()

    def _close(self) -> bool:
        was_open, self._is_open = self._is_open, False
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
        close = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()
