"""Comparisons that never hold, or always, are doubted; those that may hold are not."""

from __future__ import annotations

import pytest

from policies.comparisons import Known, doubts

KNOWN = {"tenant.tier": Known(("default", "free", "gold"), what="tier")}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            "tenant.tier == 'glod'",
            "tenant.tier == 'glod' never holds: there is no such tier; did you mean 'gold'?",
        ),
        (
            "'Gold' == tenant.tier",
            "tenant.tier == 'Gold' never holds: there is no such tier; did you mean 'gold'?",
        ),
        (
            '!(tenant.tier != "")',
            "tenant.tier != '' always holds: there is no such tier; known: default, free, gold",
        ),
        (
            "tenant.tier in ['gold', 'silver']",
            "tenant.tier in ['silver'] never holds: there is no such tier; known:",
        ),
        (
            "tenant.tier.startsWith('p')",
            "no tier has startsWith('p'): tenant.tier is one of 'default', 'free', 'gold'",
        ),
        ("time.getMonth() == 12", "time.getMonth() == 12 never holds: it is 0 to 11, January is 0"),
        ("24 <= time.getHours('UTC')", "time.getHours() >= 24 never holds: it is 0 to 23"),
        ("time.getDayOfWeek('UTC') != 7", "time.getDayOfWeek() != 7 always holds: it is 0 to 6, Sunday is 0"),
        ("signals.gain > 1.5", "signals.gain > 1.5 never holds: it is -1 to 1"),
        ("live.queue['m'] < 0", "live.queue < 0 never holds: it is 0 or more"),
        ("signals.similarity['x'] > 60.0", "signals.similarity > 60.0 never holds: it is -1 to 1"),
    ],
)
def test_doubts(source: str, found: str) -> None:
    (only,) = doubts(source, KNOWN)
    assert only.startswith(found)


@pytest.mark.parametrize(
    "source",
    [
        "tenant.tier == 'gold' || tenant.tier in ['free', 'default']",
        "tenant.tier.startsWith('go')",
        "request.user == \"tenant.tier == 'x'\"",
        "headers['tenant.tier'] == 'x'",
        "time.getHours('UTC') >= 23",
        "signals.gain > 0.5",
        "request.max_tokens == 0",
        "request.num_messages > 99",
        "tenant.name == 'x'",
        "time.getDate() == 31",
        "request.max_tokens - 5 > -3",
    ],
)
def test_what_may_hold(source: str) -> None:
    assert not [*doubts(source, KNOWN)]
