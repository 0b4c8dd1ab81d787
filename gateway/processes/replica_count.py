"""How many processes of a model run: more while requests wait, fewer when one has long had nothing to do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import NoReturn

from backend.server.engine_client import EngineClient
from backend.server.engine_messages import EngineStats
from backend.server.quote import wait_s
from gateway.processes.backends import Backend
from gateway.processes.reload import Reloader
from policies.engine_replicas import ReplicaRange
from policies.names import replica_names

logger = logging.getLogger(__name__)

POLL_S = 0.5
START_AFTER_S = 2.0
"""How long requests must have waited too long: a burst that is computed sooner starts nothing."""


class ReplicaCount:
    """The rule for one model. Both conditions must hold for a while, and again after each change."""

    def __init__(self) -> None:
        self._slow_since_s: float | None = None
        self._idle_since_s: float | None = None
        self._steps: list[int] = []

    def wanted(
        self, rules: ReplicaRange, stats: Sequence[EngineStats | None], now_s: float, *, is_asked: bool
    ) -> int:
        """How many are to run; `stats`: of those that do, None while one is not ready.

        `is_asked`: requests wait for one to be ready.
        """
        count = len(stats)
        ready = [each for each in stats if each is not None]
        steps, self._steps = self._steps, [each.steps_total for each in ready]
        if count < rules.min or (count == 0 and is_asked):
            return max(rules.min, 1)
        if not ready or len(ready) < count:  # it is known only then what one more is worth
            self._slow_since_s = self._idle_since_s = None
            return min(count, rules.max)
        is_slow = count < rules.max and min(map(_queue_s, ready)) > rules.queue_s
        has_idle = any(
            each.steps_total == before and not (each.num_running or each.num_waiting)
            for each, before in zip(ready, steps, strict=False)
        )
        self._slow_since_s = (self._slow_since_s or now_s) if is_slow else None
        self._idle_since_s = (self._idle_since_s or now_s) if has_idle and not is_asked else None
        change = 0
        if self._slow_since_s is not None and now_s - self._slow_since_s >= START_AFTER_S:
            change = 1
        elif self._idle_since_s is not None and now_s - self._idle_since_s >= rules.sleep_after_s:
            change = -1
        if change:
            self._slow_since_s = self._idle_since_s = None
        return max(rules.min, min(count + change, rules.max))


def _queue_s(stats: EngineStats) -> float:
    return wait_s(stats) - stats.decode_step_s


class ReplicaCounts:
    """Starts and ends processes of all models whose policies leave their number open."""

    def __init__(self, reloader: Reloader, on_change: Callable[[], None]) -> None:
        self._reloader = reloader
        self._on_change = on_change
        self._counts: dict[str, ReplicaCount] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self) -> NoReturn:
        """Until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(POLL_S)
                try:
                    await self._poll()
                except Exception:  # the server goes on with the processes that it has
                    logger.exception("the number of processes was not adjusted")
        finally:
            for task in self._ending:
                task.cancel()
            await asyncio.gather(*self._ending, return_exceptions=True)

    async def _poll(self) -> None:
        wanted, backends = self._reloader.wanted, self._reloader.backends
        for name, entry in self._reloader.current.policies.models.items():
            if entry.engine is None or entry.engine.is_remote:
                continue
            rules, handover_s = entry.engine.replica_range, entry.engine.drain_handover_s
            group = [backends[each] for each in replica_names(name, rules.max)]
            await self._adjust(name, rules, group, wanted, handover_s)

    async def _adjust(
        self,
        name: str,
        rules: ReplicaRange,
        group: Sequence[Backend],
        wanted: AbstractSet[str],
        handover_s: float,
    ) -> None:
        """One more runs, or one less: the last, so that the first has all adapters that were loaded."""
        awake = [each for each in group if not each.is_asleep]
        stats = [
            each.client.stats if isinstance(each.client, EngineClient) and each.client.ready else None
            for each in awake
        ]
        rule = self._counts.setdefault(name, ReplicaCount())
        count = rule.wanted(rules, stats, time.monotonic(), is_asked=name in wanted)
        following = group[len(awake)] if len(awake) < len(group) else None
        if count > len(awake) and following is not None and not following.tasks:
            logger.info("%d of at most %d processes of %r run: one more starts", len(awake), rules.max, name)
            if following is not group[0]:
                following.config.follow(group[0].config)
            await following.start()
        elif count < len(awake) or (len(awake) > rules.min and awake[-1].failure):
            if awake[-1].failure:
                logger.error("%s: it sleeps until a request comes", awake[-1].failure)
            else:
                logger.info("%d processes of %r run, of which one is idle: one ends", len(awake), name)
            task = asyncio.create_task(awake[-1].sleep(handover_s))
            self._ending.add(task)
            task.add_done_callback(self._ended)
        else:
            return
        self._on_change()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        self._on_change()
