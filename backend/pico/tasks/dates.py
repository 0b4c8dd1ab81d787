"""Calendar dates: formats, following days, weekdays and spans."""

from __future__ import annotations

from calendar import monthrange
from datetime import date, timedelta
from random import Random

from backend.pico.tasks.base import Draw, Family
from backend.pico.tasks.steps import divide_steps

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


_OFFSETS = (0, 3, 3, 6, 1, 4, 6, 2, 5, 0, 3, 5)  # days before each month of a common year, modulo 7
_CENTURY_2000 = 6  # offset of the years from 2000 on relative to those from 1900 on, modulo 7


def _length(day: date) -> int:
    leap = day.month == 2 and monthrange(day.year, 2)[1] == 29
    return 29 if leap else _LENGTHS[day.month - 1]


def _next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _wrapped(total: int, cycle: int) -> str:
    """Return the step that reduces a total into 1..cycle, if needed."""
    whole = (total - 1) // cycle * cycle
    return f";{total}-{whole}={total - whole}" if whole else ""


def _count_on(day: date, step: int) -> str:
    """Return the steps to the date `step` days later: month by month, each with its length."""
    total = day.day + step
    parts, month = [f"{day.day}+{step}={total}"], day.replace(day=1)
    while total > _length(month):
        length = _length(month)
        parts.append(f"{MONTHS[month.month - 1]} {length}:{total}-{length}={total - length}")
        total, month = total - length, _next_month(month)
        if month.month == 1:
            parts.append(str(month.year))
    return ";".join([*parts, f"{MONTHS[month.month - 1]} {total}"])


def _count_between(start: date, end: date) -> str:
    """Return the steps of a span: the remainder of the first month, whole months, the days of the last."""
    if (start.year, start.month) == (end.year, end.month):
        return f"{end.day}-{start.day}={(end - start).days}"
    total = _length(start) - start.day
    parts = [f"{MONTHS[start.month - 1]} {_length(start)}-{start.day}={total}"]
    month = _next_month(start)
    while (month.year, month.month) != (end.year, end.month):
        length = _length(month)
        parts.append(f"{MONTHS[month.month - 1]} {total}+{length}={total + length}")
        total, month = total + length, _next_month(month)
    return ";".join([*parts, f"{MONTHS[end.month - 1]} {total}+{end.day}={total + end.day}"])


def _weekday_steps(day: date) -> str:
    """Return the steps to the weekday number (1 Monday to 7 Sunday) by the "key value method".

    It is the sum modulo 7 of the years of the century, their leap days, the month's offset, the day and the
    century's offset; less one in January and February of a leap year.
    """
    years, offset = day.year % 100, _OFFSETS[day.month - 1]
    leaps, total = years // 4, years
    parts = [divide_steps(years, 4), f"{MONTHS[day.month - 1]} {offset}"]
    for part in (leaps, offset, day.day, *([_CENTURY_2000] if day.year >= 2000 else [])):
        parts.append(f"{total}+{part}={total + part}")
        total += part
    if monthrange(day.year, 2)[1] == 29 and day.month < 3:
        parts.append(f"leap {total}-1={total - 1}")
        total -= 1
    return ";".join([*parts, divide_steps(total, 7), str(total % 7 or 7)])


def _any_date(rng: Random) -> date:
    return date(rng.randint(1950, 2039), 1, 1) + timedelta(days=rng.randrange(365))


def _long(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def _shift_within(rng: Random, most: int) -> Draw:
    step, month = rng.randint(1, most), rng.randrange(12)
    start = rng.randint(1, _LENGTHS[month] - step)
    end = start + step
    name, days = MONTHS[month], "day" if step == 1 else f"{step} days"
    if rng.random() < 0.5:
        prompts = [
            f"What date is {days} after {start} {name}?",
            f"Which date comes {days} after {start} {name}?",
            f"Which date is {days} later than {start} {name}?",
            f"Add {days} to {start} {name}.",
        ]
        if step == 1:
            prompts = [f"What is the day after {start} {name}?", f"Which date follows {start} {name}?"]
        return Draw(prompts, f"{end} {name}", f"{start} {name}+{step}", f"{start}+{step}={end}")
    prompts = [
        f"What date is {days} before {end} {name}?",
        f"Which date comes {days} before {end} {name}?",
        f"Which date is {days} earlier than {end} {name}?",
        f"Subtract {days} from {end} {name}.",
    ]
    if step == 1:
        prompts = [f"What is the day before {end} {name}?", f"Which date comes right before {end} {name}?"]
    return Draw(prompts, f"{start} {name}", f"{end} {name}-{step}", f"{end}-{step}={start}")


def _part(rng: Random) -> Draw:
    day = _any_date(rng)
    text = day.isoformat() if rng.random() < 0.5 else _long(day)
    part = rng.choice(("year", "month", "day"))
    answer = {"year": str(day.year), "month": MONTHS[day.month - 1], "day": str(day.day)}[part]
    prompts = [
        f"Which {part} is in the date {text}?",
        f"What is the {part} of {text}?",
        f"Give me the {part}: {text}",
        f"Name the {part} of the date {text}.",
    ]
    fields = dict(zip(("year", "month", "day"), day.isoformat().split("-"), strict=True))
    thought = fields[part] if text == day.isoformat() else answer
    return Draw(prompts, answer, f"{part} {day.isoformat()}", thought)


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
            f"Spell out the date {day.isoformat()}.",
            f"Convert {day.isoformat()} to words.",
        ]
        return Draw(
            prompts, _long(day), f"long {day.isoformat()}", f"{day.month:02d} {MONTHS[day.month - 1]}"
        )
    prompts = [
        f"Write {_long(day)} in ISO format.",
        f"Convert {_long(day)} to YYYY-MM-DD.",
        f"Write {_long(day)} as YYYY-MM-DD.",
        f"Convert {_long(day)} to ISO format.",
    ]
    return Draw(
        prompts, day.isoformat(), f"iso {day.isoformat()}", f"{MONTHS[day.month - 1]} {day.month:02d}"
    )


def _tier3(rng: Random) -> Draw:
    if rng.random() < 0.5:
        start, step = rng.randrange(7), rng.randint(1, 30)
        name, days = WEEKDAYS[start], "day" if step == 1 else f"{step} days"
        in_days = f"in {step} days" if step > 1 else "in 1 day"
        prompts = [
            f"Today is {name}. What day will it be {in_days}?",
            f"What day of the week comes {days} after {name}?",
            f"Which weekday is {days} after {name}?",
            f"If today is {name}, which day is it {in_days}?",
        ]
        total = start + 1 + step
        thought = f"{name} {start + 1};{start + 1}+{step}={total}{_wrapped(total, 7)}"
        return Draw(prompts, WEEKDAYS[(start + step) % 7], f"{start}+{step}", thought)
    month, step = rng.randrange(12), rng.randint(1, 40)
    name, months = MONTHS[month], "month" if step == 1 else f"{step} months"
    prompts = [
        f"Which month comes {months} after {name}?",
        f"What month is {months} after {name}?",
        f"It is {name}. Which month will it be in {'1 month' if step == 1 else months}?",
        f"If this month is {name}, which month comes {months} later?",
    ]
    total = month + 1 + step
    thought = f"{name} {month + 1};{month + 1}+{step}={total}{_wrapped(total, 12)}"
    return Draw(prompts, MONTHS[(month + step) % 12], f"month {month}+{step}", thought)


def _tier4(rng: Random) -> Draw:
    start = _any_date(rng)
    step = rng.randint(5, 40)
    prompts = [
        f"What date is {step} days after {_long(start)}?",
        f"{_long(start)} plus {step} days?",
        f"Which date comes {step} days after {_long(start)}?",
        f"Add {step} days to {_long(start)}.",
    ]
    answer = _long(start + timedelta(days=step))
    return Draw(prompts, answer, f"{start.isoformat()}+{step}", _count_on(start, step))


def _tier5(rng: Random) -> Draw:
    start = _any_date(rng)
    if rng.random() < 0.5:
        prompts = [
            f"Which day of the week was {_long(start)}?",
            f"What day of the week is {_long(start)}?",
            f"What weekday was {_long(start)}?",
            f"On which weekday does {_long(start)} fall?",
        ]
        return Draw(prompts, WEEKDAYS[start.weekday()], start.isoformat(), _weekday_steps(start))
    step = rng.randint(2, 120)
    end = start + timedelta(days=step)
    prompts = [
        f"How many days are there between {_long(start)} and {_long(end)}?",
        f"How many days are there from {_long(start)} to {_long(end)}?",
        f"Count the days from {_long(start)} to {_long(end)}.",
        f"How many days after {_long(start)} is {_long(end)}?",
    ]
    return Draw(prompts, str(step), f"{start.isoformat()} to {end.isoformat()}", _count_between(start, end))


FAMILY = Family("dates", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
