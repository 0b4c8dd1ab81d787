"""A call is made again before any content, within the rules, the budget and the request's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gateway.answer import Answer, Embedded, Usage
from gateway.errors import ApiError, RateLimited, Unavailable, UpstreamFailed
from gateway.fleet.budget import RetryBudget
from gateway.fleet.fleet import Fleet, Patience, Timing
from gateway.fleet.health import Health
from gateway.fleet.target import Target
from gateway.providers.base import Provider
from gateway.providers.fake import FakeProvider
from policies.retries import DEFAULT_RETRY, Retry

ANSWER = Embedded([], Usage())


@dataclass
class Asked:
    """Fails with these errors, then answers; the times that were slept."""

    errors: list[ApiError]
    calls: int = 0
    slept: list[float] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)

    async def ask(self, provider: Provider) -> Answer:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return ANSWER

    async def sleep(self, wait_s: float) -> None:
        self.slept.append(wait_s)


async def asked(errors: Sequence[ApiError], retry: Retry = DEFAULT_RETRY, *, left_s: float = 60.0) -> Asked:
    """What happened; it fails with the error that is left."""
    found = Asked(list(errors))
    timing = Timing(found.sleep, lambda: 1_700_000_000.0, lambda: 1.0)
    fleet = Fleet(Target(FakeProvider(), Health("m")), RetryBudget(lambda: 0.0), timing)
    assert await fleet.ask(found.ask, Patience(retry, lambda: left_s, found.causes.append)) is ANSWER
    return found


def unavailable(**headers: str) -> ApiError:
    return Unavailable("x", headers={name.replace("_", "-"): value for name, value in headers.items()})


async def test_two_retries_after_longer_waits() -> None:
    found = await asked([UpstreamFailed("x"), unavailable()])
    assert (found.calls, found.slept, found.causes) == (3, [0.1, 0.2], ["server_error", "unavailable"])


async def test_then_the_last_error_is_raised() -> None:
    with pytest.raises(ApiError, match="third"):
        await asked([Unavailable("first"), Unavailable("second"), Unavailable("third")])


async def test_the_upstreams_wait_is_kept_up_to_5_s() -> None:
    assert (await asked([unavailable(retry_after="5")])).slept == [5.0]
    with pytest.raises(Unavailable):
        await asked([unavailable(retry_after="6")])


async def test_no_retry_would_pass_the_requests_time_limit() -> None:
    assert (await asked([unavailable(retry_after="2")], left_s=2.1)).calls == 2
    with pytest.raises(Unavailable):
        await asked([unavailable(retry_after="2")], left_s=1.9)


async def test_the_rules_say_how_often_and_after_what() -> None:
    assert (await asked([Unavailable("x")] * 3, Retry(attempts=3))).calls == 4
    with pytest.raises(Unavailable):
        await asked([Unavailable("x")], Retry(attempts=0))
    assert (await asked([RateLimited("x")], Retry(on=["rate_limited"]))).calls == 2
    with pytest.raises(Unavailable):
        await asked([Unavailable("x")], Retry(on=["rate_limited"]))


async def test_the_budget_is_shared_by_requests() -> None:
    fleet = Fleet(Target(FakeProvider(), Health("m")), RetryBudget(lambda: 0.0), Timing(Asked([]).sleep))
    calls = 0
    for _ in range(100):
        found = Asked([Unavailable("x")] * 9)
        with pytest.raises(Unavailable):
            await fleet.ask(found.ask, Patience(Retry(), lambda: 60.0))
        calls += found.calls
    assert calls == 110
