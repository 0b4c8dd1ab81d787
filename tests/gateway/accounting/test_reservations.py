"""Limits of cost hold for any order of requests that run at the same time, and all of it returns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounting.admission import Admission
from gateway.accounting.counters import Counters
from gateway.accounting.ledger import Ledger
from gateway.accounting.reservations import NOTHING, Cost
from gateway.errors import RateLimited
from policies.document import Policies
from policies.tenants import Limits, Tier

NOW_S = 1_000_000_020.0


def admission(ledger: Ledger | None = None, **limits: float) -> Admission:
    tier = Tier(limits=Limits(**limits))  # type: ignore[arg-type]
    return Admission(Policies(tiers={"default": tier}), ledger or Ledger(Counters(now_s=lambda: NOW_S)))


STEPS = st.lists(
    st.tuples(
        st.integers(1, 60), st.integers(0, 60), st.booleans(), st.integers(0, 5), st.sampled_from(["t", "u"])
    ),
    max_size=60,
)  # highest cost, real cost, whether bounded, how many others end first, tenant


@given(STEPS)
def test_bounded_requests_never_pass_the_limit(steps: list[tuple[int, int, bool, int, str]]) -> None:
    ledger = Ledger(Counters(now_s=lambda: NOW_S))
    limit, open_ones = 100, list[tuple[str, Cost, int]]()
    for highest, real, is_bounded, num_ending, tenant in steps:
        # A new version of the policies each time: what is held is not the version's.
        door = admission(ledger, tokens_per_minute=limit, usd_per_day=1.0)
        for ended, cost, used in open_ones[:num_ending]:
            ledger.use(ended, tokens=used)
            ledger.spend(ended, "m", used / 100)
            door.release(ended, cost)
        del open_ones[:num_ending]
        try:
            cost = door.reserve(tenant, Cost(highest, highest / 100), is_bounded=is_bounded)
        except RateLimited:
            continue
        assert 0 < cost.tokens <= highest and (not is_bounded or cost.tokens == highest)
        open_ones.append((tenant, cost, min(real, int(cost.tokens))))
        for each in ("t", "u"):
            assert ledger.recent(each, "tokens") + ledger.reservations.of(each).tokens <= limit
            assert ledger.tenant_usd(each) + ledger.reservations.of(each).usd <= 1.0 + 1e-9
    for ended, cost, _ in open_ones:
        admission(ledger, tokens_per_minute=1).release(ended, cost)
    assert ledger.reservations.of("t") == ledger.reservations.of("u") == NOTHING


def test_a_refusal_says_when_it_may_fit() -> None:
    door = admission(tokens_per_minute=100)
    held = door.reserve("t", Cost(60), is_bounded=True)
    with pytest.raises(RateLimited, match="The limit of 100 tokens per minute is reached") as waits:
        door.reserve("t", Cost(60), is_bounded=True)
    assert waits.value.headers["retry-after"] == "1"  # only what runs is in the way
    door.release("t", held)
    door._ledger.use("t", tokens=60)
    with pytest.raises(RateLimited) as full:
        door.reserve("t", Cost(60), is_bounded=True)
    assert int(full.value.headers["retry-after"]) > 1
    with pytest.raises(RateLimited, match="may cost 101 tokens, more than the limit of 100 tokens") as never:
        door.reserve("t", Cost(101), is_bounded=True)
    assert "retry-after" not in never.value.headers and "max_tokens" in never.value.message


def test_a_budget_has_its_own_code() -> None:
    door = admission(usd_per_day=1.0)
    door.reserve("t", Cost(1, 0.9), is_bounded=True)
    with pytest.raises(RateLimited, match="1 USD per day") as refused:
        door.reserve("t", Cost(1, 0.2), is_bounded=True)
    assert (refused.value.code, refused.value.headers["retry-after"]) == ("budget_exceeded", "1")


def test_an_open_end_gets_what_is_left_but_not_beside_others() -> None:
    door = admission(tokens_per_minute=100)
    assert door.reserve("t", Cost(500), is_bounded=False) == Cost(100)
    with pytest.raises(RateLimited):
        door.reserve("t", Cost(5), is_bounded=False)
    assert door.reserve("u", Cost(5), is_bounded=False) == Cost(5)


def test_a_refused_budget_holds_no_tokens() -> None:
    door = admission(tokens_per_minute=100, usd_per_day=1.0)
    with pytest.raises(RateLimited):
        door.reserve("t", Cost(50, 2.0), is_bounded=True)
    assert door._ledger.reservations.of("t") == NOTHING


@pytest.mark.parametrize("limits", [{}, {"requests_per_minute": 5}, {"concurrent_requests": 2}])
def test_others_have_nothing_to_set_aside(limits: dict[str, float]) -> None:
    door = admission(**limits)
    assert not door.limits_cost("t")
    assert door.reserve("t", Cost(10**9, 10.0), is_bounded=True) == NOTHING
    door.release("t", NOTHING)
