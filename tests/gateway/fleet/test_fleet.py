"""A call is made again before any content, within the rules, the budget and the request's time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from gateway.answer import Answer, Delta, Embedded, Generated, Usage, close_answer
from gateway.errors import ApiError, InvalidRequest, RateLimited, TimedOut, Unavailable, UpstreamFailed
from gateway.fleet.budget import ALWAYS_PER_S, RetryBudget
from gateway.fleet.fleet import Fleet, Patience, Timing
from gateway.fleet.health import Health
from gateway.fleet.target import Target
from gateway.providers.base import Provider
from gateway.providers.fake import FakeProvider
from policies.retries import DEFAULT_RETRY, Hedge, Retry

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
    fleet = Fleet([Target(FakeProvider(), Health("m"))], RetryBudget(lambda: 0.0), timing)
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
    fleet = Fleet([Target(FakeProvider(), Health("m"))], RetryBudget(lambda: 0.0), Timing(Asked([]).sleep))
    calls = 0
    for _ in range(100):
        found = Asked([Unavailable("x")] * 9)
        with pytest.raises(Unavailable):
            await fleet.ask(found.ask, Patience(Retry(), lambda: 60.0))
        calls += found.calls
    assert calls == 110


class Places:
    """Two targets; `down` are those that fail, with this error."""

    def __init__(self, *, max_concurrent: int | None = None) -> None:
        self.providers = [FakeProvider(), FakeProvider()]
        self.targets = [
            Target(each, Health(str(number)), place=str(number), max_concurrent=max_concurrent)
            for number, each in enumerate(self.providers)
        ]
        self.down: dict[int, ApiError] = {}
        self.asked: list[int] = []
        self.slept: list[float] = []
        self.hanging: int | None = None
        self.begun: set[bytes] = set()
        timing = Timing(self.sleep, lambda: 1_700_000_000.0, lambda: 0.0)
        self.fleet = Fleet(self.targets, RetryBudget(lambda: 0.0), timing)

    async def sleep(self, wait_s: float) -> None:
        self.slept.append(wait_s)

    async def ask(self, provider: Provider) -> Answer:
        number = next(at for at, each in enumerate(self.providers) if each is provider)
        self.asked.append(number)
        if number == self.hanging:
            await asyncio.Event().wait()
        if number in self.down:
            raise self.down[number]
        return Embedded([], Usage())

    async def answer(self, conversation: bytes = b"", retry: Retry = DEFAULT_RETRY) -> list[int]:
        """The targets that one request has asked."""
        self.asked = []
        is_continued = conversation in self.begun
        await self.fleet.ask(
            self.ask, Patience(retry, lambda: 60.0, conversation=conversation, is_continued=is_continued)
        )
        self.begun.add(conversation)
        return self.asked


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("x"),
        RateLimited("x", headers={"retry-after": "60"}),
        UpstreamFailed("x", code="upstream_authentication_error"),
        TimedOut("x", code="upstream_first_token_timeout"),
    ],
)
async def test_another_target_is_asked_at_once(error: ApiError) -> None:
    places = Places()
    places.down[0] = error
    assert await places.answer() == [0, 1] and places.slept == []
    places.down[1] = Unavailable("x")
    with pytest.raises(ApiError):
        await places.answer()


async def test_where_all_have_failed_one_is_asked_again_after_a_wait() -> None:
    places = Places()
    places.down = {0: Unavailable("x"), 1: Unavailable("x")}
    with pytest.raises(Unavailable):
        await places.answer()
    assert sorted(places.asked[:2]) == [0, 1] and len(places.asked) == 3 and len(places.slept) <= 1


async def test_the_requests_own_mistakes_are_not_carried_to_another_target() -> None:
    places = Places()
    places.down[0] = InvalidRequest("x")
    with pytest.raises(InvalidRequest):
        await places.answer()
    assert places.asked == [0]


async def test_a_conversation_stays_with_its_target_while_that_is_healthy() -> None:
    places = Places()
    stays = {name: await places.answer(name) for name in (b"first", b"second")}
    assert stays == {b"first": [0], b"second": [1]}
    for _ in range(5):
        assert {name: await places.answer(name) for name in stays} == stays
    places.down[0] = Unavailable("x")
    assert await places.answer(b"first") == [0, 1]
    del places.down[0]
    assert await places.answer(b"first") == [1]


async def test_a_conversation_leaves_a_target_that_hangs() -> None:
    places = Places()
    assert await places.answer(b"first") == [0]
    places.hanging = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await places.answer(b"first")
    assert await places.answer(b"first") == [1]


async def test_a_target_that_is_full_is_not_asked() -> None:
    places = Places(max_concurrent=1)
    call = places.targets[0].begin()
    assert await places.answer() == [1]
    other = places.targets[1].begin()
    with pytest.raises(RateLimited, match="max_concurrent"):
        await places.answer()
    assert places.asked == [] and places.slept == [1.0, 1.0]
    call.complete()
    other.complete()
    assert len(await places.answer()) == 1


async def test_a_model_is_out_where_all_of_its_targets_are() -> None:
    places = Places()
    places.targets[0].health.failed("key_refused", UpstreamFailed("x"))
    assert places.fleet.trouble is None and places.fleet.troubles == ["key_refused", None]
    places.targets[1].health.failed("rate_limited", RateLimited("x"))
    assert places.fleet.trouble == "key_refused"


HEDGE = Hedge(after_s=0.001)


async def test_a_slow_target_gets_company_and_the_first_content_wins() -> None:
    places = Places()
    places.hanging = 0
    answers: list[str] = []
    retries: list[str] = []
    patience = Patience(
        DEFAULT_RETRY, lambda: 60.0, retries.append, b"talk", on_answer=answers.append, hedge=HEDGE
    )
    await asyncio.wait_for(places.fleet.ask(places.ask, patience), 5)
    assert places.asked == [0, 1] and answers == ["1"] and retries == ["hedge"]
    assert [target.num_running for target in places.targets] == [0, 0]
    assert places.targets[0].health.trouble is None
    places.hanging = None
    assert await places.answer(b"talk") == [0]  # never measured: it gets its call
    follow_up = Patience(DEFAULT_RETRY, lambda: 60.0, conversation=b"talk", is_continued=True, hedge=HEDGE)
    await places.fleet.ask(places.ask, follow_up)
    assert places.asked[1:] == [0]


async def test_second_calls_have_the_budget_of_retries() -> None:
    places = Places()
    places.hanging = 0
    asked = Patience(DEFAULT_RETRY, lambda: 60.0, hedge=Hedge(after_s=0.001, budget=0.0))
    for number in range(ALWAYS_PER_S + 1):
        for target in places.targets:
            target.latency.is_measured = False
        places.asked.clear()
        call = asyncio.create_task(places.fleet.ask(places.ask, asked))
        _, waiting = await asyncio.wait([call], timeout=0.2 if number == ALWAYS_PER_S else 20.0)
        assert bool(waiting) == (number == ALWAYS_PER_S) and len(places.asked) == (1 if waiting else 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [target.num_running for target in places.targets] == [0, 0]


async def test_a_single_target_and_one_beside_a_full_one_have_no_company() -> None:
    places = Places(max_concurrent=1)
    places.hanging = 0
    other = places.targets[1].begin()
    asked = Patience(DEFAULT_RETRY, lambda: 60.0, hedge=HEDGE)
    for fleet in (places.fleet, Fleet(places.targets[:1], RetryBudget(lambda: 0.0))):
        places.asked.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fleet.ask(places.ask, asked), 0.05)
        assert places.asked == [0]
    other.complete()


async def test_where_both_fail_the_call_is_retried_elsewhere_or_ends() -> None:
    places = Places()
    places.down = {1: Unavailable("second")}
    places.hanging = 0

    async def first_then_fails(provider: Provider) -> Answer:
        if provider is places.providers[0]:
            await asyncio.sleep(0.01)
            raise InvalidRequest("first")
        return await places.ask(provider)

    with pytest.raises(InvalidRequest, match="first"):
        await places.fleet.ask(first_then_fails, Patience(DEFAULT_RETRY, lambda: 60.0, hedge=HEDGE))
    assert places.asked == [1] and not places.slept


async def test_an_answer_that_comes_too_late_is_closed_and_charged() -> None:
    places = Places()
    late = Usage(5, 1)
    both = asyncio.Barrier(2)

    async def at_once(provider: Provider) -> Answer:
        await both.wait()
        return Embedded([], late)

    asked = Patience(DEFAULT_RETRY, lambda: 60.0, hedge=HEDGE)
    await asyncio.wait_for(places.fleet.ask(at_once, asked), 5)
    assert asked.lost == [late] and [target.num_running for target in places.targets] == [0, 0]


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_stays_open_whatever_targets_and_clients_do(seed: int) -> None:
    draw = random.Random(seed)
    targets = [Target(FakeProvider(), Health(str(at)), place=str(at), max_concurrent=30) for at in range(3)]
    fleet = Fleet(targets, RetryBudget(), Timing(draw=draw.random))
    num_open = 0

    class Deltas(AsyncIterator[Delta]):
        def __init__(self) -> None:
            nonlocal num_open
            num_open += 1
            self.is_open = True

        async def __anext__(self) -> Delta:
            if draw.random() < 0.3:
                raise draw.choice([StopAsyncIteration, Unavailable("broken")])
            await asyncio.sleep(0)
            return Delta(0, "a")

        async def aclose(self) -> None:
            nonlocal num_open
            num_open -= self.is_open
            self.is_open = False

    async def ask(provider: Provider) -> Answer:
        await asyncio.sleep(draw.choice([0.0, 0.0, 0.002, 0.01, 60.0]))
        if draw.random() < 0.2:
            raise draw.choice([Unavailable("x"), InvalidRequest("x"), TimedOut("x")])
        return Generated(Deltas(), Usage())

    async def client() -> None:
        asked = Patience(Retry(budget=1.0), lambda: 60.0, hedge=Hedge(after_s=0.001, budget=1.0))
        answer = None
        try:
            async with asyncio.timeout(draw.choice([0.001, 0.005, 0.05, 0.1])):
                answer = await fleet.ask(ask, asked)
                assert isinstance(answer, Generated)
                async for _ in answer.deltas:
                    pass
        except (ApiError, TimeoutError):
            pass
        finally:
            await close_answer(answer)

    before = asyncio.all_tasks()
    await asyncio.gather(*(client() for _ in range(100)))
    assert asyncio.all_tasks() == before
    assert [target.num_running for target in targets] == [0, 0, 0] and num_open == 0
