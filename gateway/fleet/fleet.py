"""Asks a model's upstream, and again where a failure is worth it: before any content of the answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.answer import Answer, Usage, close_answer
from gateway.errors import ApiError, RateLimited, retry_after
from gateway.fleet.budget import RetryBudget
from gateway.fleet.choice import healthy, less_loaded
from gateway.fleet.health import Trouble
from gateway.fleet.hedging import first_of
from gateway.fleet.retries import MAX_RETRY_AFTER_S, backoff_s, cause_elsewhere, cause_of, retry_after_s
from gateway.fleet.stays import Stays
from gateway.fleet.target import Target
from gateway.providers.base import Provider
from policies.retries import Hedge, Retry, RetryCause

AskProvider = Callable[[Provider], Awaitable[Answer]]
"""Passes one request to a provider, as often as it is called."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Time and chance, which tests replace."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now_s: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random


class Patience(msgspec.Struct, frozen=True, eq=False):
    """What one request allows."""

    rules: Retry
    left_s: Callable[[], float]  # until the request's total time limit
    on_retry: Callable[[str], None] = lambda cause: None
    conversation: bytes = b""  # identifies it by its first turn
    is_continued: bool = False  # a target has answered a turn of it
    on_answer: Callable[[str], None] | None = None  # gets the place of the target
    hedge: Hedge | None = None
    is_stream: bool = False
    lost: list[Usage] = []  # of answers that came too late


@dataclass(slots=True)
class _Attempts:
    """The calls of one request so far."""

    patience: Patience
    num_retries: int = 0
    failed: list[Target] = field(default_factory=list)  # since all of them were asked


class Fleet:
    """What answers for one model of the policies."""

    def __init__(
        self,
        targets: Sequence[Target],
        budget: RetryBudget,
        timing: Timing = Timing(),
        stays: Stays | None = None,
    ) -> None:
        """`stays`: where conversations have been answered."""
        self.targets = tuple(targets)
        self._budget = budget
        self._timing = timing
        self._stays = stays or Stays()

    @property
    def has_choice(self) -> bool:
        """Whether there are several targets, of which conversations keep one."""
        return len(self.targets) > 1

    @property
    def troubles(self) -> list[Trouble | None]:
        """Why each target is left out; None for one that is not."""
        return [target.health.trouble for target in self.targets]

    @property
    def trouble(self) -> Trouble | None:
        """Why other models should be asked; None: a target of this one may be."""
        found = self.troubles
        return None if None in found else found[0]

    @property
    def is_full(self) -> bool:
        """Whether each target that may be asked has as many calls as it may have."""
        return all(target.is_full for target in healthy(self.targets))

    async def ask(self, ask: AskProvider, patience: Patience) -> Answer:
        """The answer, of which at most its beginning has arrived. Raises the ApiError of the last call."""
        self._budget.count_call()
        known = self._stays.target_of(patience.conversation) if patience.is_continued else ""
        target = self._choose(self.targets, known)
        attempts: _Attempts | None = None
        while True:
            try:
                if patience.hedge is not None:
                    target, answer = await self._hedged(target, ask, patience, patience.hedge)
                else:
                    answer = await _call(target, ask)
            except ApiError as error:
                attempts = attempts or _Attempts(patience)
                target, wait_s = self._after(error, target, attempts)
                if wait_s:
                    await self._timing.sleep(wait_s)
                continue
            except BaseException:  # nothing has come in time: the next turn may go elsewhere
                self._stays.remember(patience.conversation, "")
                raise
            self._stays.remember(patience.conversation, target.place)
            if patience.on_answer is not None:
                patience.on_answer(target.place)
            return answer

    async def _hedged(
        self, target: Target, ask: AskProvider, patience: Patience, rules: Hedge
    ) -> tuple[Target, Answer]:
        """The answer that begins first, of this target or of one that is asked later too."""
        waits = self._budget.waits[patience.is_stream]

        async def called(asked: Target) -> tuple[Target, Answer]:
            began_s = asked.clock()
            answer = await _call(asked, ask)
            waits.add(asked.clock() - began_s)
            return asked, answer

        def second() -> Coroutine[Any, Any, tuple[Target, Answer]] | None:
            others = [each for each in self.targets if each is not target and each.may_be_asked]
            if not others or not self._budget.try_take(rules.budget):
                return None
            patience.on_retry("hedge")
            return called(self._choose(others))

        async def discard(late: tuple[Target, Answer]) -> None:
            await close_answer(late[1])
            patience.lost.append(late[1].usage)

        return await first_of(called(target), waits.late_s(rules.after_s or rules.after), second, discard)

    def _choose(self, targets: Sequence[Target], known: str = "") -> Target:
        """The target at the place `known` if it may be asked, else the less loaded of two."""
        if len(targets) == 1:
            return targets[0]
        usable = [target for target in healthy(targets) if not target.is_full] or list(targets)
        kept = next((target for target in usable if target.place == known), None) if known else None
        return kept or less_loaded(usable, self._timing.draw)

    def _after(self, error: ApiError, target: Target, attempts: _Attempts) -> tuple[Target, float]:
        """The target to ask next, and after how long: another one at once. Raises `error` for none."""
        attempts.failed.append(target)
        others = [other for other in self.targets if other not in attempts.failed and other.may_be_asked]
        if others:
            cause, wait_s = cause_elsewhere(error), 0.0
        else:
            cause, wait_s = cause_of(error), self._wait_s(error, attempts.num_retries)
        if cause is None or not self._may_retry(attempts, cause, wait_s):
            raise error
        attempts.patience.on_retry(cause)
        attempts.num_retries += 1
        if others:
            return self._choose(others), wait_s
        attempts.failed.clear()
        return self._choose(self.targets), wait_s

    def _wait_s(self, error: ApiError, num_retries: int) -> float:
        asked_s = retry_after_s(error, self._timing.now_s())
        return backoff_s(num_retries, self._timing.draw()) if asked_s is None else asked_s

    def _may_retry(self, attempts: _Attempts, cause: RetryCause, wait_s: float) -> bool:
        """Whether the request's rules, its time and the budget allow it; the last one is then used."""
        rules = attempts.patience.rules
        return (
            attempts.num_retries < rules.attempts
            and rules.covers(cause)
            and wait_s <= MAX_RETRY_AFTER_S
            and wait_s < attempts.patience.left_s()
            and self._budget.try_take(rules.budget)
        )


def full() -> RateLimited:
    """The error for a call that no target has room for."""
    return RateLimited(
        "As many requests run as `max_concurrent` allows. Try again.",
        code="upstream_full",
        headers=retry_after(1.0),
    )


async def _call(target: Target, ask: AskProvider) -> Answer:
    """The answer of one call, which the target follows to its end."""
    if target.is_full:
        raise full()
    call = target.begin()
    try:
        return call.follow(await ask(target.provider))
    except ApiError as error:
        call.fail(error)
        raise
    except BaseException:
        call.abandon()
        raise
