"""Conversions between units of length, weight, volume, money and time."""

from __future__ import annotations

from random import Random

from backend.pico.tasks.base import Draw, Family

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


def _ask(value: str, source: str, target: str) -> list[str]:
    return [
        f"Convert {value} {source} to {target}.",
        f"How many {target} are {value} {source}?",
        f"How many {target} are in {value} {source}?",
        f"What is {value} {source} in {target}?",
        f"{value} {source} in {target}?",
        f"Express {value} {source} in {target}.",
    ]


def _down(rng: Random, unit: _Unit, value: int) -> Draw:
    singular, plural, symbol, small, small_symbol, factor = unit
    source, target = (
        (symbol, small_symbol) if rng.random() < 0.4 else (singular if value == 1 else plural, small)
    )
    return Draw(_ask(str(value), source, target), f"{value * factor} {target}", f"{value} {plural}>{small}")


def _up(rng: Random, unit: _Unit, value: int) -> Draw:
    singular, plural, symbol, small, small_symbol, factor = unit
    source, target = (small_symbol, symbol) if rng.random() < 0.4 else (small, plural)
    shown = singular if value == 1 and target == plural else target
    return Draw(
        _ask(str(value * factor), source, target), f"{value} {shown}", f"{value * factor} {small}>{plural}"
    )


def _mixed(rng: Random, unit: _Unit, value: int, rest: int) -> Draw:
    singular, plural, symbol, small, small_symbol, factor = unit
    if rng.random() < 0.4:
        text, target = f"{value} {symbol} {rest} {small_symbol}", small_symbol
    else:
        text, target = f"{value} {singular if value == 1 else plural} and {rest} {small}", small
    prompts = [
        f"Convert {text} to {target}.",
        f"How many {target} are {text}?",
        f"What is {text} in {target}?",
    ]
    return Draw(prompts, f"{value * factor + rest} {target}", f"{value} {plural} {rest}>{small}")


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
    return (
        _up(rng, unit, rng.randint(1, 60)) if rng.random() < 0.5 else _mixed(rng, unit, rng.randint(1, 12), 5)
    )


def _tier5(rng: Random) -> Draw:
    tenths, unit = rng.randint(11, 99), rng.choice(_DECIMAL)
    _, plural, _, small, _, factor = unit
    value = f"{tenths / 10:.1f}"
    return Draw(_ask(value, plural, small), f"{tenths * factor // 10} {small}", f"{value} {plural}>{small}")


FAMILY = Family("units", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
