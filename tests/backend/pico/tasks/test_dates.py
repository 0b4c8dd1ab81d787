"""The steps of dates are correct and end with the answer."""

from __future__ import annotations

import re
from datetime import date
from random import Random

import pytest

from backend.pico.tasks.dates import FAMILY, WEEKDAYS


@pytest.mark.parametrize("tier", [1, 2, 3, 4, 5])
def test_every_calculation_is_right(tier: int) -> None:
    rng = Random(tier)
    for _ in range(300):
        thought = FAMILY.generate(rng, tier).thought
        for left, sign, right, result in re.findall(r"(\d+)([+-])(\d+)=(\d+)", thought):
            assert int(left) + int(right) * (1 if sign == "+" else -1) == int(result)


def test_weekday_thoughts_end_with_the_number_of_the_weekday() -> None:
    rng = Random(0)
    for tier in (3, 5):
        drawn = [FAMILY.generate(rng, tier) for _ in range(400)]
        found = [instance for instance in drawn if instance.answer in WEEKDAYS]
        assert len(found) > 100
        for instance in found:
            assert int(re.split("[=;]", instance.thought)[-1]) == WEEKDAYS.index(instance.answer) + 1


def test_later_dates_end_with_the_day_and_month() -> None:
    rng = Random(0)
    for _ in range(400):
        instance = FAMILY.generate(rng, 4)
        day, month, year = instance.answer.split(" ")
        assert instance.thought.endswith(f"{month} {day}")
        assert year in instance.prompt or year in instance.thought


def test_spans_end_with_the_days_and_know_leap_years() -> None:
    rng = Random(0)
    drawn = [FAMILY.generate(rng, 5) for _ in range(2000)]
    spans = [instance for instance in drawn if " to " in instance.key]
    assert all(instance.thought.endswith(f"={instance.answer}") for instance in spans)
    leap = [instance for instance in spans if "February" in instance.thought and "29" in instance.thought]
    assert leap
    for instance in spans:
        start, end = (date.fromisoformat(text) for text in instance.key.split(" to "))
        assert (end - start).days == int(instance.answer)
