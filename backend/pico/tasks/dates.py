"""Calendar dates: formats, following days, weekdays and spans."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

from backend.pico.tasks.base import Draw, Family

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _any_date(rng: Random) -> date:
    return date(rng.randint(1950, 2039), 1, 1) + timedelta(days=rng.randrange(365))


def _long(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def _shift_within(rng: Random, most: int) -> Draw:
    step, month = rng.randint(1, most), rng.randrange(12)
    start = rng.randint(1, _LENGTHS[month] - step)
    name, days = MONTHS[month], "day" if step == 1 else f"{step} days"
    if rng.random() < 0.5:
        prompts = [
            f"What date is {days} after {start} {name}?",
            f"Which date comes {days} after {start} {name}?",
        ]
        if step == 1:
            prompts = [f"What is the day after {start} {name}?", f"Which date follows {start} {name}?"]
        return Draw(prompts, f"{start + step} {name}", f"{start} {name}+{step}")
    end = start + step
    prompts = [f"What date is {days} before {end} {name}?", f"Which date comes {days} before {end} {name}?"]
    if step == 1:
        prompts = [f"What is the day before {end} {name}?", f"Which date comes right before {end} {name}?"]
    return Draw(prompts, f"{start} {name}", f"{end} {name}-{step}")


def _part(rng: Random) -> Draw:
    day = _any_date(rng)
    text = day.isoformat() if rng.random() < 0.5 else _long(day)
    part = rng.choice(("year", "month", "day"))
    answer = {"year": str(day.year), "month": MONTHS[day.month - 1], "day": str(day.day)}[part]
    prompts = [
        f"Which {part} is in the date {text}?",
        f"What is the {part} of {text}?",
        f"Give me the {part}: {text}",
    ]
    return Draw(prompts, answer, f"{part} {day.isoformat()}")


def _tier1(rng: Random) -> Draw:
    return _shift_within(rng, 1) if rng.random() < 0.4 else _part(rng)


def _tier2(rng: Random) -> Draw:
    kind, day = rng.randrange(3), _any_date(rng)
    if kind == 0:
        return _shift_within(rng, 9)
    if kind == 1:
        prompts = [
            f"Write {day.isoformat()} in words.",
            f"Write the date {day.isoformat()} with the month as a word.",
        ]
        return Draw(prompts, _long(day), f"long {day.isoformat()}")
    prompts = [f"Write {_long(day)} in ISO format.", f"Convert {_long(day)} to YYYY-MM-DD."]
    return Draw(prompts, day.isoformat(), f"iso {day.isoformat()}")


def _tier3(rng: Random) -> Draw:
    if rng.random() < 0.5:
        start, step = rng.randrange(7), rng.randint(1, 30)
        prompts = [f"Today is {WEEKDAYS[start]}. What day will it be in {step} days?"]
        return Draw(prompts, WEEKDAYS[(start + step) % 7], f"{start}+{step}")
    month, step = rng.randrange(12), rng.randint(1, 40)
    prompts = [f"Which month comes {step} months after {MONTHS[month]}?"]
    return Draw(prompts, MONTHS[(month + step) % 12], f"month {month}+{step}")


def _tier4(rng: Random) -> Draw:
    start = _any_date(rng)
    step = rng.randint(5, 40)
    prompts = [f"What date is {step} days after {_long(start)}?", f"{_long(start)} plus {step} days?"]
    return Draw(prompts, _long(start + timedelta(days=step)), f"{start.isoformat()}+{step}")


def _tier5(rng: Random) -> Draw:
    start = _any_date(rng)
    if rng.random() < 0.5:
        return Draw(
            [f"Which day of the week was {_long(start)}?"], WEEKDAYS[start.weekday()], start.isoformat()
        )
    step = rng.randint(2, 120)
    end = start + timedelta(days=step)
    prompts = [f"How many days are there between {_long(start)} and {_long(end)}?"]
    return Draw(prompts, str(step), f"{start.isoformat()} to {end.isoformat()}")


FAMILY = Family("dates", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
