"""Where a request goes on whose engine has died: on another, or on the next one; and not often."""

from __future__ import annotations

import asyncio
import logging

from backend.errors import EngineUnavailable, QueueFull
from gateway.errors import ServerError
from gateway.providers.engine.model import EngineModel

logger = logging.getLogger(__name__)

MAX_RESUMPTIONS = 2
MAX_DEATHS_WHILE_RUNNING = 1
"""A request that runs when its engine dies once more may be what ends it."""
WAIT_S = 20.0
"""For an engine that restarts, and for room in its queue."""

_LONGEST_PAUSE_S = 1.0


class Resumption:
    """The deaths of its engine that one request has met."""

    __slots__ = ("_due_s", "_num_deaths", "_num_while_running")

    def __init__(self) -> None:
        self._num_deaths = 0
        self._num_while_running = 0
        self._due_s = 0.0

    async def next_engine(
        self, model: EngineModel, weights: tuple[str, ...], request_id: str, *, was_running: bool
    ) -> EngineModel:
        """Where the request goes on: on another engine, or on the same after its restart.

        `was_running`: the engine had generated something for it since it was sent. Raises ApiError if it may
        not be sent again, or after WAIT_S.
        """
        self._num_deaths += 1
        self._num_while_running += was_running
        is_suspect = self._num_while_running > MAX_DEATHS_WHILE_RUNNING
        if is_suspect or self._num_deaths > MAX_RESUMPTIONS:
            logger.error(
                "request %s met %d deaths of the engine of %r, %d while it ran: it is not sent again",
                request_id,
                self._num_deaths,
                model.name,
                self._num_while_running,
                extra={"fields": {"request_id": request_id}},
            )
        if is_suspect:
            raise ServerError(
                f"The engine of {model.name!r} died twice while it generated this answer; its log names "
                "the cause.",
                code="engine_error",
            )
        if self._num_deaths > MAX_RESUMPTIONS:
            raise model.unavailable()
        self._due_s = asyncio.get_running_loop().time() + WAIT_S
        if (other := model.elsewhere(weights)) is not None:
            return other
        try:
            await model.client.wait_ready(WAIT_S)
        except EngineUnavailable:
            raise model.unavailable() from None
        return model

    async def wait_for_room(self, refusal: QueueFull) -> bool:
        """Wait for what an engine that has restarted had no room for; False: the request may not wait."""
        left_s = self._due_s - asyncio.get_running_loop().time() if self._num_deaths else 0.0
        if left_s <= 0.0:
            return False
        await asyncio.sleep(min(refusal.retry_after_s, _LONGEST_PAUSE_S, left_s))
        return True
