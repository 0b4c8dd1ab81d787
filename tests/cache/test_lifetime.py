from __future__ import annotations

import pytest

from cache.lifetime import SLOW_TTL_S, VOLATILE_TTL_S, lifetime_s

DAY_S = 86400.0


@pytest.mark.parametrize(
    ("kind", "ttl_s", "expected"),
    [
        ("static", DAY_S, DAY_S),
        ("slow", DAY_S, SLOW_TTL_S),
        ("slow", 10.0, 10.0),
        ("volatile", DAY_S, VOLATILE_TTL_S),
        ("volatile", 1.0, 1.0),
        ("never", DAY_S, VOLATILE_TTL_S),
    ],
)
def test_an_answer_lives_no_longer_than_it_is_right(kind: str, ttl_s: float, expected: float) -> None:
    assert lifetime_s(kind, ttl_s) == expected  # type: ignore[arg-type]
