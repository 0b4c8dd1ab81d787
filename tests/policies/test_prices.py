"""Prices: what each kind of token costs, and that a price without the newer keys costs what it did."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.prices import Price

USD = st.floats(0, 1e4, allow_nan=False)
COUNT = st.integers(0, 10_000_000)
OWN = st.none() | USD


@given(USD, USD, COUNT, COUNT, COUNT, COUNT, COUNT)
def test_two_prices_cost_what_they_always_have(
    reads: float, writes: float, prompt: int, completion: int, cached: int, written: int, reasoning: int
) -> None:
    price = Price(input_usd_per_million_tokens=reads, output_usd_per_million_tokens=writes)
    spent = prompt * reads
    expected = (spent + completion * writes) / 1e6
    usd = price.tokens_usd(prompt, completion, cached=cached, written=written, reasoning=reasoning)
    assert usd == expected  # to the last bit
    assert price.highest_usd(prompt, completion) == expected


@given(USD, USD, OWN, OWN, OWN, COUNT, COUNT, COUNT, COUNT, COUNT)
def test_highest_is_never_below_what_it_costs(
    reads: float,
    writes: float,
    cached_usd: float | None,
    written_usd: float | None,
    reasoning_usd: float | None,
    prompt: int,
    completion: int,
    cached: int,
    written: int,
    reasoning: int,
) -> None:
    price = Price(
        input_usd_per_million_tokens=reads,
        output_usd_per_million_tokens=writes,
        cached_input_usd_per_million_tokens=cached_usd,
        cache_write_usd_per_million_tokens=written_usd,
        reasoning_usd_per_million_tokens=reasoning_usd,
    )
    usd = price.tokens_usd(prompt, completion, cached=cached, written=written, reasoning=reasoning)
    assert 0 <= usd <= price.highest_usd(prompt, completion) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("counts", "usd"),
    [
        ({}, 1000 * 4 + 500 * 10),
        ({"cached": 400}, 600 * 4 + 400 * 1 + 500 * 10),
        ({"written": 100}, 900 * 4 + 100 * 5 + 500 * 10),
        ({"cached": 400, "written": 100}, 500 * 4 + 400 * 1 + 100 * 5 + 500 * 10),
        ({"reasoning": 300}, 1000 * 4 + 200 * 10 + 300 * 20),
        ({"cached": 2000}, 1000 * 1 + 500 * 10),  # more than there are: all of them
        ({"cached": 900, "written": 900}, 900 * 1 + 100 * 5 + 500 * 10),
        ({"reasoning": 900}, 1000 * 4 + 500 * 20),
    ],
)
def test_each_part_is_counted_once(counts: dict[str, int], usd: float) -> None:
    price = Price(
        input_usd_per_million_tokens=4,
        output_usd_per_million_tokens=10,
        cached_input_usd_per_million_tokens=1,
        cache_write_usd_per_million_tokens=5,
        reasoning_usd_per_million_tokens=20,
    )
    assert price.tokens_usd(1000, 500, **counts) == pytest.approx(usd / 1e6)


def test_a_price_of_0_is_not_that_of_the_input() -> None:
    price = Price(
        input_usd_per_million_tokens=4,
        output_usd_per_million_tokens=0,
        cached_input_usd_per_million_tokens=0,
    )
    assert price.tokens_usd(1000, 5, cached=1000) == 0.0


@pytest.mark.parametrize("name", [name for name in Price.__struct_fields__ if name != "batch_factor"])
def test_any_cost_makes_it_not_free(name: str) -> None:
    free = {"input_usd_per_million_tokens": 0.0, "output_usd_per_million_tokens": 0.0}
    assert Price(**free).is_free and Price(**free, batch_factor=0.5).is_free
    assert not Price(**{**free, name: 1e-9}).is_free
