"""Where a request goes on whose engine has died: on another, or on the next one; and not often."""

from __future__ import annotations

import asyncio
import logging

from backend.errors import QueueFull
from gateway.errors import ServerError
from gateway.providers.base import Deaths
from gateway.providers.engine.model import EngineModel

logger = logging.getLogger(__name__)

MAX_RESUMPTIONS = 2
MAX_DEATHS_WHILE_RUNNING = 1
"""A request that runs when an engine dies once more may be what ends them: no third is given it."""
SILENT_AFTER_S = 2.5
"""An engine that sends no message for so long may hang."""
WAIT_S = 20.0
"""For an engine that restarts, and for room in its queue."""

_LONGEST_PAUSE_S = 1.0
_POLL_S = 0.02


class Resumption:
    """The deaths of its engine that one call has met."""

    __slots__ = ("_due_s", "_num_deaths", "_while_running")

    def __init__(self, deaths: Deaths) -> None:
        """`deaths`: while the request ran, earlier calls of other models included."""
        self._num_deaths = 0
        self._while_running = deaths
        self._due_s = 0.0

    def check(self, name: str) -> None:
        """Raise ServerError if the request may not be given to one more engine, of whichever model."""
        if self._while_running.num > MAX_DEATHS_WHILE_RUNNING:
            raise ServerError(
                f"The engine of {name!r} is not given this request: {self._while_running.num} have died or "
                "hung while they computed it; their log names the cause.",
                code="engine_error",
            )

    def note_hang(self, age_s: float, request_id: str) -> None:
        """The call ends while it ran, on an engine that was heard of so long ago: a fallback may be next."""
        if age_s >= SILENT_AFTER_S:
            self._while_running.num += 1
            logger.warning("request %s leaves an engine that is silent for %.1f s", request_id, age_s)

    def note_death(self, model: EngineModel, request_id: str, *, was_running: bool) -> None:
        """Its engine has died, while it ran or waited. Raises ApiError if it may not be sent again."""
        self._num_deaths += 1
        self._while_running.num += was_running
        num_while_running = self._while_running.num
        if num_while_running > MAX_DEATHS_WHILE_RUNNING or self._num_deaths > MAX_RESUMPTIONS:
            logger.error(
                "request %s met %d deaths of the engine of %r, %d while it ran: it is not sent again",
                request_id,
                self._num_deaths,
                model.name,
                num_while_running,
                extra={"fields": {"request_id": request_id}},
            )
        self.check(model.name)
        if self._num_deaths > MAX_RESUMPTIONS:
            raise model.unavailable()

    async def next_engine(self, model: EngineModel, weights: tuple[str, ...]) -> EngineModel:
        """Where the request goes on: on another engine, or on the same after its restart.

        Raises ApiError after WAIT_S.
        """
        now_s = asyncio.get_running_loop().time
        self._due_s = now_s() + WAIT_S
        model.client.num_waiters += 1
        try:
            while (other := model.elsewhere(weights)) is None and not model.client.ready:
                if now_s() >= self._due_s:
                    raise model.unavailable()
                await asyncio.sleep(_POLL_S)
        finally:
            model.client.num_waiters -= 1
        return other or model

    async def wait_for_room(self, refusal: QueueFull) -> bool:
        """Wait for what an engine that has restarted had no room for; False: the request may not wait."""
        left_s = self._due_s - asyncio.get_running_loop().time()
        if left_s <= 0.0:  # also where nothing was resumed
            return False
        await asyncio.sleep(min(refusal.retry_after_s, _LONGEST_PAUSE_S, left_s))
        return True
