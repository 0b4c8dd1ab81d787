"""Limits of tenants, their parents, keys, users and models, as one version of the policies has them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounting.accounts import MemoryAccounts
from gateway.accounting.admission import MOST, SOFT_HEADER, Admission, Admitted, Cost
from gateway.accounting.counters import Counters
from gateway.accounting.ledger import Ledger
from gateway.accounting.receipt import Charged
from gateway.answer import Usage
from gateway.auth import Principal
from gateway.errors import Forbidden, RateLimited
from policies.document import Policies
from policies.tenants import Limits, Tenant, Tier

NOW_S = 1_000_000_020.0
T, U = Principal("t", "0" * 8), Principal("u", "1" * 8)


def ledger() -> Ledger:
    return Ledger(Counters(now_s=lambda: NOW_S))


def admission(counted: Ledger | None = None, models: list[str] | None = None, **limits: float) -> Admission:
    tier = Tier(models=models, limits=Limits(**limits))  # type: ignore[arg-type]
    return Admission(Policies(tiers={"default": tier}), counted or ledger())


def held(counted: Ledger) -> dict[str, int]:
    assert isinstance(counted.accounts, MemoryAccounts)
    return dict(counted.accounts.held)


async def reserve(
    door: Admission, cost: Cost, who: Principal = T, model: str = "m", *, is_bounded: bool = True
) -> Admitted:
    admitted = await door.enter(who)
    try:
        return await door.reserve(admitted, who.tenant, model, cost, is_bounded=is_bounded)
    except RateLimited:
        door.settle(admitted)
        raise


def spent(tokens: int = 0, usd: float = 0.0, machine_seconds: float = 0.0) -> Charged:
    return Charged(Usage(tokens, machine_seconds=machine_seconds), usd)


async def test_what_runs_counts_under_every_version_of_the_policies() -> None:
    counted = ledger()
    first = admission(counted, concurrent_requests=2)
    two = await first.enter(T, num_answers=2)
    second = admission(counted, concurrent_requests=3)
    one = await second.enter(T)
    for each in (first, second):
        with pytest.raises(RateLimited):
            await each.enter(T)
    first.settle(two)
    second.settle(one)
    assert not held(counted)


async def test_a_refused_request_does_not_run() -> None:
    counted = ledger()
    with pytest.raises(Forbidden):
        await admission(counted, ["m"], concurrent_requests=2).enter(T, "another")
    assert not held(counted)


STEPS = st.lists(
    st.tuples(
        st.integers(1, 60), st.integers(0, 60), st.booleans(), st.integers(0, 5), st.sampled_from([T, U])
    ),
    max_size=60,
)  # highest cost, real cost, whether bounded, how many others end first, who


@given(STEPS)
async def test_bounded_requests_never_pass_the_limit(
    steps: list[tuple[int, int, bool, int, Principal]],
) -> None:
    counted, limit, open_ones = ledger(), 100, list[tuple[Admitted, int, Principal]]()
    used = dict.fromkeys("tu", 0)
    for highest, real, is_bounded, num_ending, who in steps:
        # A new version of the policies each time: what is held is not the version's.
        door = admission(counted, tokens_per_minute=limit, usd_per_day=1.0)
        for ended, cost, whose in open_ones[:num_ending]:
            door.settle(ended, spent(cost, cost / 100))
            used[whose.tenant] += cost
        del open_ones[:num_ending]
        try:
            admitted = await reserve(door, Cost(highest, highest / 100), who, is_bounded=is_bounded)
        except RateLimited:
            continue
        tokens = next(amount for line, amount in admitted.held if line.kind == "tokens")
        assert 0 < tokens <= highest and (not is_bounded or tokens == highest)
        open_ones.append((admitted, min(real, tokens), who))
        for each in "tu":
            assert used[each] + held(counted).get(f"tokens_per_minute:tenant:{each}", 0) <= limit
            assert used[each] * 10**7 + held(counted).get(f"usd_per_day:tenant:{each}", 0) <= 10**9
    for ended, _, _ in open_ones:
        admission(counted, tokens_per_minute=1).settle(ended)
    assert not held(counted)


async def test_a_refusal_says_when_it_may_fit() -> None:
    door = admission(tokens_per_minute=100)
    first = await reserve(door, Cost(60))
    with pytest.raises(RateLimited, match="The limit of 100 tokens per minute is reached") as waits:
        await reserve(door, Cost(60))
    assert waits.value.headers["retry-after"] == "1"  # only what runs is in the way
    door.settle(first, spent(60))
    with pytest.raises(RateLimited) as full:
        await reserve(door, Cost(60))
    assert int(full.value.headers["retry-after"]) > 1
    with pytest.raises(RateLimited, match="may cost 101 tokens, more than the limit of 100 tokens") as never:
        await reserve(door, Cost(101))
    assert "retry-after" not in never.value.headers and "max_tokens" in never.value.message


async def test_a_budget_has_its_own_code() -> None:
    door = admission(usd_per_day=1.0)
    await reserve(door, Cost(1, 0.9))
    with pytest.raises(RateLimited, match="1 USD per day") as refused:
        await reserve(door, Cost(1, 0.2))
    assert (refused.value.code, refused.value.headers["retry-after"]) == ("budget_exceeded", "1")


async def test_an_open_end_gets_what_is_left_but_not_beside_others() -> None:
    door = admission(tokens_per_minute=100)
    assert (await reserve(door, Cost(500), is_bounded=False)).held[0][1] == 100
    with pytest.raises(RateLimited):
        await reserve(door, Cost(5), is_bounded=False)
    assert (await reserve(door, Cost(5), U, is_bounded=False)).held[0][1] == 5


async def test_a_refused_budget_holds_no_tokens() -> None:
    counted = ledger()
    with pytest.raises(RateLimited):
        await reserve(admission(counted, tokens_per_minute=100, usd_per_day=1.0), Cost(50, 2.0))
    assert not held(counted)


@pytest.mark.parametrize("limits", [{}, {"requests_per_minute": 5}, {"concurrent_requests": 2}])
async def test_others_have_nothing_to_set_aside(limits: dict[str, float]) -> None:
    door = admission(**limits)
    assert not door.limits_cost("t")
    admitted = await door.enter(T)
    assert await door.reserve(admitted, "t", "m", Cost(10**9, 10.0), is_bounded=True) is admitted


def tenants(**more: Any) -> Admission:  # noqa: ANN401
    return Admission(Policies(tenants={"t": Tenant(**more)}), ledger())


@pytest.mark.parametrize("window", ["minute", "day", "month"])
@pytest.mark.parametrize("kind", ["requests", "tokens", "usd", "machine_seconds"])
async def test_every_kind_in_every_window(kind: str, window: str) -> None:
    door = tenants(limits=Limits(**{f"{kind}_per_{window}": 3}))  # type: ignore[arg-type]
    for _ in range(3):
        door.settle(await reserve(door, Cost(1, 1.0)), spent(1, 1.0, 1.0))
    with pytest.raises(RateLimited, match=rf"3 [a-zA-Z ]+ per {window} is reached") as refused:
        await reserve(door, Cost(1, 1.0))
    assert 1 <= int(refused.value.headers["retry-after"]) <= 31 * 86_400
    await reserve(door, Cost(1, 1.0), U)


async def test_keys_and_users_have_their_own() -> None:
    door = tenants(limits_per_key=Limits(requests_per_day=1), limits_per_user=Limits(requests_per_day=2))
    other_key = Principal("t", "f" * 8)
    await door.enter(T, user="jo")
    with pytest.raises(RateLimited, match="1 requests per day of each key"):
        await door.enter(T, user="bo")
    await door.enter(other_key, user="jo")
    third = Principal("t", "e" * 8)
    with pytest.raises(RateLimited, match="2 requests per day of each user"):
        await door.enter(third, user="jo")
    await door.enter(third)  # names no user, and was not counted before
    assert door._own["t"] == []


async def test_models_have_their_own() -> None:
    door = tenants(limits_per_model={"m": Limits(requests_per_minute=1, usd_per_day=1.0)})
    await reserve(door, Cost(1, 0.1))
    with pytest.raises(RateLimited, match="1 requests per minute of the model 'm'"):
        await reserve(door, Cost(1, 0.1))
    with pytest.raises(RateLimited, match="may cost 2 USD, more than .* 1 USD per day of the model"):
        await reserve(tenants(limits_per_model={"m": Limits(usd_per_day=1.0)}), Cost(1, 2.0))
    await reserve(door, Cost(1, 5.0), model="n")


async def test_parents_limit_the_sum_of_their_children() -> None:
    family = {
        "house": Tenant(limits=Limits(requests_per_day=3)),
        "floor": Tenant(parent="house"),
        "t": Tenant(parent="floor", limits=Limits(requests_per_day=2)),
        "u": Tenant(parent="house"),
    }
    door = Admission(Policies(tenants=family), ledger())
    await door.enter(T)
    await door.enter(T)
    with pytest.raises(RateLimited, match="2 requests per day is"):
        await door.enter(T)
    await door.enter(U)
    with pytest.raises(RateLimited, match="3 requests per day is"):
        await door.enter(U)


async def test_soft_limits_only_mark() -> None:
    door = tenants(limits=Limits(usd_per_day=10.0), soft_limits=Limits(usd_per_day=2.0, tokens_per_day=5))
    first = await door.enter(T)
    assert (first.near_limit, first.headers) == (0.0, {})
    door.settle(first, spent(4, 1.0))
    second = await door.enter(T)
    assert second.near_limit == 0.8 and SOFT_HEADER not in second.headers
    door.settle(second, spent(1, 1.5))
    third = await door.enter(T)
    assert third.near_limit == 1.25
    assert third.headers[SOFT_HEADER] == "2 USD per day, 5 tokens per day"


async def test_a_tenants_own_limits_come_before_its_tiers_field_by_field() -> None:
    policies = Policies(
        tiers={"gold": Tier(limits=Limits(requests_per_day=1, requests_per_minute=9))},
        tenants={"t": Tenant(tier="gold", limits=Limits(requests_per_minute=2))},
    )
    door = Admission(policies, ledger())
    admitted = await door.enter(T)
    assert admitted.headers["x-ratelimit-limit-requests"] == "2"
    with pytest.raises(RateLimited, match="1 requests per day"):
        await door.enter(T)


async def test_an_admitted_request_is_not_counted_again_but_pays() -> None:
    door = tenants(limits=Limits(requests_per_minute=1, tokens_per_day=5, concurrent_requests=1))
    waiting = await door.enter(T)
    run = await door.enter(T, is_admitted=True)
    run = await door.reserve(run, "t", "m", Cost(5), is_bounded=True)
    door.settle(run, spent(5))
    door.settle(waiting)
    with pytest.raises(RateLimited):
        await door.enter(T)


@pytest.mark.parametrize("began_s", [0, 20.5, 59])
@pytest.mark.parametrize("later_s", [0, 45, 70])
async def test_a_request_that_waits_as_long_as_it_is_told_is_admitted(began_s: float, later_s: float) -> None:
    """A minute slides: its limit does not begin again with the minute of the clock."""
    now_s = NOW_S - NOW_S % 60 + began_s
    door = admission(Ledger(Counters(now_s=lambda: now_s)), requests_per_minute=60)
    for _ in range(60):
        await door.enter(T)
    now_s += later_s
    for _ in range(3):
        with pytest.raises(RateLimited) as refused:
            for _ in range(61):
                await door.enter(T)
        wait_s = int(refused.value.headers["retry-after"])
        assert 1 <= wait_s <= 62
        now_s += wait_s
        await door.enter(T)


async def test_prices_and_limits_without_a_bound_are_numbers_still() -> None:
    counted = ledger()
    door = admission(counted, usd_per_day=float("inf"), tokens_per_day=1 << 70)
    admitted = await reserve(door, Cost(10.0, float("inf")))
    assert held(counted) == {"usd_per_day:tenant:t": MOST, "tokens_per_day:tenant:t": 10}
    door.settle(admitted, spent(10, usd=float("inf")))
    assert not held(counted)
    with pytest.raises(RateLimited, match="may cost 1000003 tokens, more than"):
        await reserve(admission(tokens_per_day=5), Cost(1_000_003.0))
