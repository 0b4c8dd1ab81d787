"""Conversions between units of length, weight, volume, money and time."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family
from backend.pico.tasks.steps import add_steps, divide_steps, multiply_steps

# (large singular, large plural, large symbol, small plural, small symbol, factor)
_Unit = tuple[str, str, str, str, str, int]
_DECIMAL: tuple[_Unit, ...] = (
    ("metre", "metres", "m", "centimetres", "cm", 100),
    ("kilometre", "kilometres", "km", "metres", "m", 1000),
    ("centimetre", "centimetres", "cm", "millimetres", "mm", 10),
    ("kilogram", "kilograms", "kg", "grams", "g", 1000),
    ("litre", "litres", "l", "millilitres", "ml", 1000),
    ("euro", "euros", "EUR", "cents", "ct", 100),
    ("second", "seconds", "s", "milliseconds", "ms", 1000),
    ("tonne", "tonnes", "t", "kilograms", "kg", 1000),
)
_TIME: tuple[_Unit, ...] = (
    ("hour", "hours", "h", "minutes", "min", 60),
    ("minute", "minutes", "min", "seconds", "s", 60),
    ("day", "days", "d", "hours", "h", 24),
    ("week", "weeks", "weeks", "days", "d", 7),
    ("year", "years", "years", "months", "months", 12),
)
# Pairs of conversions: from the first one's large unit to the second one's small unit.
_FAR = ((_TIME[0], _TIME[1]), (_TIME[2], _TIME[0]), (_TIME[3], _TIME[2]))


def _times(value: int, factor: int) -> str:
    """Return the steps of value * factor; tens and hundreds only append their zeros."""
    core = int(str(factor).rstrip("0"))
    if core == 1:
        return f"*{factor}"
    steps = multiply_steps(value, core)
    return steps if core == factor else f"{steps};{value * factor}"


def _divided(number: int, factor: int) -> str:
    """Return the steps of an exact number / factor, without the zeros at the end of both."""
    if int(str(factor).rstrip("0")) == 1:
        return f"/{factor}"
    return divide_steps(number // 10, factor // 10) if factor % 10 == 0 else divide_steps(number, factor)


def _ask(value: str, source: str, target: str) -> list[str]:
    return [
        f"Convert {value} {source} to {target}.",
        f"How many {target} are {value} {source}?",
        f"How many {target} are in {value} {source}?",
        f"What is {value} {source} in {target}?",
        f"{value} {source} in {target}?",
        f"Express {value} {source} in {target}.",
    ]


def _ask_mixed(text: str, target: str) -> list[str]:
    return [
        f"Convert {text} to {target}.",
        f"How many {target} are {text}?",
        f"What is {text} in {target}?",
        f"Express {text} in {target}.",
    ]


def _down(rng: Random, unit: _Unit, value: int) -> Draw:
    singular, plural, symbol, small, small_symbol, factor = unit
    source, target = (
        (symbol, small_symbol) if rng.random() < 0.4 else (singular if value == 1 else plural, small)
    )
    return Draw(
        _ask(str(value), source, target),
        f"{value * factor} {target}",
        f"{value} {plural}>{small}",
        _times(value, factor),
    )


def _up(rng: Random, unit: _Unit, value: int) -> Draw:
    singular, plural, symbol, small, small_symbol, factor = unit
    source, target = (small_symbol, symbol) if rng.random() < 0.4 else (small, plural)
    shown = singular if value == 1 and target == plural else target
    return Draw(
        _ask(str(value * factor), source, target),
        f"{value} {shown}",
        f"{value * factor} {small}>{plural}",
        _divided(value * factor, factor),
    )


def _mixed(rng: Random, unit: _Unit, value: int, rest: int) -> Draw:
    singular, plural, symbol, small, small_symbol, factor = unit
    if rng.random() < 0.4:
        text, target = f"{value} {symbol} {rest} {small_symbol}", small_symbol
    else:
        text, target = f"{value} {singular if value == 1 else plural} and {rest} {small}", small
    thought = f"{value * factor}+{rest}"
    if unit in _TIME:
        thought = f"{_times(value, factor)};{add_steps(value * factor, rest)}"
    return Draw(
        _ask_mixed(text, target),
        f"{value * factor + rest} {target}",
        f"{value} {plural} {rest}>{small}",
        thought,
    )


def _decimal(rng: Random) -> Draw:
    tenths, (_, plural, _, small, _, factor) = rng.randint(11, 99), rng.choice(_DECIMAL)
    value = f"{tenths / 10:.1f}"
    answer = f"{tenths * factor // 10} {small}"
    return Draw(_ask(value, plural, small), answer, f"{value} {plural}>{small}", f"{tenths}*{factor // 10}")


def _far(rng: Random) -> Draw:
    """Two units down from a mixed value: 3 hours 20 minutes in seconds."""
    upper, lower = rng.choice(_FAR)
    factor, value = upper[-1], rng.randint(2, 9)
    rest = rng.randint(2, factor - 1)
    middle, total = value * factor + rest, (value * factor + rest) * lower[-1]
    if rng.random() < 0.4:
        text, target = f"{value} {upper[2]} {rest} {upper[4]}", lower[4]
    else:
        text, target = f"{value} {upper[1]} and {rest} {upper[3]}", lower[3]
    thought = f"{_times(value, factor)};{add_steps(value * factor, rest)};{_times(middle, lower[-1])}"
    return Draw(
        _ask_mixed(text, target), f"{total} {target}", f"{value} {upper[1]} {rest}>{lower[3]}", thought
    )


def _tier1(rng: Random) -> Draw:
    return _down(rng, rng.choice(_DECIMAL), rng.randint(1, rng.choice((99, 250))))


def _tier2(rng: Random) -> Draw:
    unit = rng.choice(_DECIMAL)
    if rng.random() < 0.6:
        return _up(rng, unit, rng.randint(1, 99))
    return _mixed(rng, unit, rng.randint(1, 20), rng.randint(1, unit[-1] - 1))


def _tier3(rng: Random) -> Draw:
    return _down(rng, rng.choice(_TIME), rng.randint(1, 60))


def _tier4(rng: Random) -> Draw:
    unit = rng.choice(_TIME)
    if rng.random() < 0.5:
        return _up(rng, unit, rng.randint(1, 60))
    return _mixed(rng, unit, rng.randint(1, 12), rng.randint(2, unit[-1] - 1))


def _tier5(rng: Random) -> Draw:
    return _decimal(rng) if rng.random() < 0.4 else _far(rng)


FAMILY = Family("units", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
