"""Date and time formats of exact schemas accept only dates and times that exist."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import pytest

from backend.structured.compiled_grammar import build, compilable
from backend.structured.llguidance_source import llguidance_source
from backend.types import GrammarSpec
from tests.backend.structured.letters import ids, letters


def takes(schema: dict[str, Any], *texts: str, is_exact: bool = True) -> list[bool]:
    spec = GrammarSpec(kind="json_schema", text=json.dumps(schema), is_exact=is_exact)
    vocabulary = letters()
    start = build(compilable(llguidance_source(spec, vocabulary), vocabulary).source, vocabulary)
    found = []
    for text in texts:
        matcher = start.deep_copy()
        tokens = ids(json.dumps(text))
        found.append(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
    return found


def string(name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"type": "string", "format": name, **more}


def is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def test_dates_follow_the_calendar() -> None:
    years = (0, 1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9996, 9999)
    texts = [f"{year:04}-{month:02}-{day:02}" for year in years for month in (2, 4) for day in range(33)]
    texts += [str(date(2023, 1, 1) + timedelta(days)) for days in range(365)]
    assert takes(string("date"), *texts) == [is_date(text) for text in texts]


@pytest.mark.parametrize(
    ("time", "is_good"),
    [
        ("23:59:59Z", True),
        ("00:00:00.25+02:00", True),
        ("10:00:60Z", False),
        ("24:00:00Z", False),
        ("10:00:00", False),
        ("10:00:00+24:00", False),
    ],
)
def test_a_time_has_sixty_seconds_in_a_minute(time: str, is_good: bool) -> None:
    assert takes(string("time"), time) == [is_good]
    assert takes(string("date-time"), f"2024-02-29T{time}", f"2023-02-29T{time}") == [is_good, False]


def test_a_pattern_and_a_format_both_hold_and_lenient_schemas_do_not_change() -> None:
    both = string("date", pattern="-29$")
    assert takes(both, "2024-02-29", "2023-02-29", "2023-02-28") == [True, False, False]
    assert takes(string("date"), "2023-02-29", is_exact=False) == [True]
    assert takes(string("ipv4"), "10.0.0.1", "10.0.0.256") == [True, False]
