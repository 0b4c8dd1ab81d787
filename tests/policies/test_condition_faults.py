"""Conditions in the words of other languages: each error says what to write in their place."""

from __future__ import annotations

import pytest

from policies.condition_faults import unknown_time_zone
from policies.conditions import Condition, ConditionError


@pytest.mark.parametrize(
    ("source", "column", "message"),
    [
        ("tenant.tier = 'gold'", 13, "'=' is no operator; write '==' to compare"),
        ("tenant.tier === 'gold'", 13, "'===' is no operator; write '=='"),
        ("tenant.tier <> 'gold'", 13, "'<>' is no operator; write '!='"),
        ("request.stream and true", 16, "'and' is no operator; write '&&'"),
        ("request.stream OR true", 16, "'OR' is no operator; write '||'"),
        ("not request.stream", 1, "'not' is no operator; write '!'"),
        ("tenant.tier not in ['a']", 13, "'not in' is no operator; write !(x in ['a', 'b'])"),
        ("request.stream & true", 16, "'&' is no operator; write '&&'"),
        ("request.stream | true", 16, "'|' is no operator; write '||'"),
        ("tenant.tier == “gold”", 16, "strings stand in straight quotes"),
        ("tenant.tier in ('a', 'b')", 13, "a list stands in brackets"),
        ("tenant.tier contains 'x'", 13, "'contains' is called: write x.contains('text')"),
        ("tenant.tier == 'sk-canary", 16, "a string begins here and does not end"),
        ("request.user == ' = and or' && request.stream = true", 47, "'=' is no operator"),
        ("request.stream == True", 19, "unknown name 'True'; write true"),
        ("tenant.tier == gold", 16, "unknown name 'gold'; text stands in quotes, as 'gold'"),
        ("tenant.spent_usd > 5", 18, "'>' is not defined for (double, int); write 5.0"),
        ("5 < signals.gain", 3, "'<' is not defined for (int, double); write 5.0"),
        ("request.max_tokens >= 1e3", 20, "'>=' is not defined for (int, double); write 1000"),
        (
            "request.num_messages > 2.5",
            22,
            "'>' is not defined for (int, double); compare with a whole number",
        ),
        (
            "request.num_messages == '5'",
            22,
            "'==' is not defined for (int, string); write the number without",
        ),
        (
            "request.stream == 'true'",
            16,
            "'==' is not defined for (bool, string); write true or false without",
        ),
        ("1 < request.max_tokens < 5", 24, "'<' is not defined for (bool, int); compare twice"),
        ("tenant.name == null", 13, "'==' is not defined for (string, null_type); nothing is null"),
        ("time > '2026-01-01'", 6, "'>' is not defined for (google.protobuf.Timestamp, string)"),
        ("!tenant.tier == 'gold'", 1, "'!' is not defined for (string); write !(…)"),
        ("time.hour < 8", 5, "a time has no fields; write time.getHours('Europe/Berlin')"),
        ("request.user.size > 3", 13, "a text has no fields; functions are called, as x.size()"),
        ("tenant.tier == 'a' 'sk-canary'", 20, "is not valid CEL: input of a string where an operator"),
    ],
)
def test_each_mistake_has_its_remedy(source: str, column: int, message: str) -> None:
    with pytest.raises(ConditionError) as caught:
        Condition(source)
    fault = caught.value.faults[0]
    assert (fault.message[: len(message)], fault.column) == (message, column)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("zone", "nearest"),
    [
        ("Europe/Berlinn", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("europe/paris", "Europe/Paris"),
        ("utc", "UTC"),
        ("CEST", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("PST", "America/Los_Angeles"),
    ],
)
def test_an_unknown_time_zone_has_the_nearest(zone: str, nearest: str) -> None:
    assert unknown_time_zone(zone) == f"unknown time zone {zone!r}; did you mean {nearest!r}?"
    with pytest.raises(ConditionError, match=f"did you mean '{nearest}'"):
        Condition(f"time.getHours('{zone}') < 8")


def test_a_time_zone_like_no_other_has_an_example() -> None:
    assert unknown_time_zone("Qqqq").endswith("write one as 'Europe/Berlin'")
