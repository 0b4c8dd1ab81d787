"""Asks a model's upstream, and again where a failure is worth it: before any content of the answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.answer import Answer
from gateway.errors import ApiError
from gateway.fleet.budget import RetryBudget
from gateway.fleet.health import Trouble
from gateway.fleet.retries import MAX_RETRY_AFTER_S, backoff_s, cause_of, retry_after_s
from gateway.fleet.target import Target
from gateway.providers.base import Provider
from policies.retries import Retry, RetryCause

AskProvider = Callable[[Provider], Awaitable[Answer]]
"""Passes one request to a provider, as often as it is called."""


def _ignore(cause: RetryCause) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Timing:
    """Time and chance, which tests replace."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now_s: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Patience:
    """What one request allows."""

    rules: Retry
    left_s: Callable[[], float]  # until the request's total time limit
    on_retry: Callable[[RetryCause], None] = _ignore


class Fleet:
    """What answers for one model of the policies."""

    def __init__(self, target: Target, budget: RetryBudget, timing: Timing = Timing()) -> None:
        self._target = target
        self._budget = budget
        self._timing = timing

    @property
    def trouble(self) -> Trouble | None:
        """Why other models should be asked; None: this one may be."""
        return self._target.health.trouble

    async def ask(self, ask: AskProvider, patience: Patience) -> Answer:
        """The answer, of which at most its beginning has arrived. Raises the ApiError of the last call."""
        self._budget.count_call()
        num_retries = 0
        while True:
            try:
                return await _call(self._target, ask)
            except ApiError as error:
                cause = cause_of(error)
                wait_s = self._wait_s(error, num_retries)
                if cause is None or not self._may_retry(patience, cause, num_retries, wait_s):
                    raise
            patience.on_retry(cause)
            num_retries += 1
            await self._timing.sleep(wait_s)

    def _wait_s(self, error: ApiError, num_retries: int) -> float:
        asked_s = retry_after_s(error, self._timing.now_s())
        return backoff_s(num_retries, self._timing.draw()) if asked_s is None else asked_s

    def _may_retry(self, patience: Patience, cause: RetryCause, num_retries: int, wait_s: float) -> bool:
        """Whether the request's rules, its time and the budget allow it; the last one is then used."""
        rules = patience.rules
        return (
            num_retries < rules.attempts
            and rules.covers(cause)
            and wait_s <= MAX_RETRY_AFTER_S
            and wait_s < patience.left_s()
            and self._budget.try_take(rules.budget)
        )


async def _call(target: Target, ask: AskProvider) -> Answer:
    """The answer of one call, which the target follows to its end."""
    call = target.begin()
    try:
        return call.follow(await ask(target.provider))
    except ApiError as error:
        call.fail(error)
        raise
    except BaseException:
        call.abandon()
        raise
