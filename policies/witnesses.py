"""Whether a request can satisfy a condition: it is tried with the values that its variables can have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from math import prod
from typing import Any

from policies.comparisons import RANGES, Known
from policies.conditions import Condition, activation, without_strings
from policies.variables import MAPS, VARIABLES

MAX_TRIED = 3000
"""Conditions with more combinations are not judged."""

_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
_CALL = re.compile(r"\b(\w++)\s*+\(")
_ARITHMETIC = re.compile(r"[%*/]|\\")
_FINE_TIME = re.compile(
    r"get(?:Date|DayOf(?:Month|Year)|FullYear|Minutes|Seconds|Milliseconds)|timestamp|duration"
)
_OTHER = "\x00other"
_MONDAY = datetime(2027, 1, 4, 0, 30, tzinfo=UTC)
_FAR = 10**9

Slot = tuple[str, str]
"""A variable, and the key in it or ""."""


def outcome(condition: Condition, known: Mapping[str, Known], *, has_prices: bool) -> bool | None:
    """True where it holds for every value, False where for none; None where that depends, or is not known."""
    slots = _slots(condition)
    bare = without_strings(condition.source)
    if not slots or _ARITHMETIC.search(bare) or (_is_open(slots, known) and _has_calls(bare)):
        return None
    if ("time", "") in slots and _FINE_TIME.search(bare):
        return None
    values = [[*_values(slot, condition.source, known, has_prices)] for slot in slots]
    if prod(map(len, values)) > MAX_TRIED:
        return None
    found: bool | None = None
    for number, each in enumerate(product(*values)):
        holds = condition.holds(activation(_facts(slots, each)))
        if holds is None or (number and holds != found):
            return None
        found = holds
    return found


def _slots(condition: Condition) -> Sequence[Slot]:
    return [*((name, "") for name in sorted(condition.names - MAPS)), *sorted(condition.keys)]


def _is_open(slots: Sequence[Slot], known: Mapping[str, Known]) -> bool:
    """Whether a text is among them that a caller may choose."""
    return any(
        isinstance(_missing(name), str) and name != "time" and (name not in known or known[name].pattern)
        for name, _ in slots
    )


def _has_calls(bare: str) -> bool:
    return any(not name.startswith("get") and name != "in" for name in _CALL.findall(bare))


def _missing(name: str) -> object:
    kind = VARIABLES[name].kind
    return {"headers": "", "request.metadata": "", "live.ready": False, "live.queue": 0}.get(
        name, 0.0 if name in MAPS else VARIABLES[name].missing if kind is not None else ""
    )


def _values(slot: Slot, source: str, known: Mapping[str, Known], has_prices: bool) -> Iterator[Any]:
    name, missing = slot[0], _missing(slot[0])
    if name == "time":
        months = range(12) if "getMonth" in source else (0,)
        yield from (
            _MONDAY + timedelta(days=30.5 * month, hours=hour) for month in months for hour in range(7 * 24)
        )
    elif isinstance(missing, bool):
        yield from (True, False)
    elif isinstance(missing, str):
        yield from _texts(name, source, known)
    elif name.endswith("spent_usd") and not has_prices:
        yield 0.0
    else:
        yield from _numbers(name, source, type(missing))


def _texts(name: str, source: str, known: Mapping[str, Known]) -> Iterator[str]:
    literals = {single or double for single, double in _STRING.findall(source)}
    closed = known.get(name)
    if closed is None:
        declared = (value for each in Condition(source).names & known.keys() for value in known[each].values)
        yield from sorted({*literals, *declared, "", _OTHER})
    elif closed.pattern:
        named = {"key-ffffffff", "ffffffff", *literals}
        yield from sorted({*closed.values, *(each for each in named if closed.has(each))})
    else:
        yield from sorted(closed.values)


def _numbers(name: str, source: str, kind: type) -> Iterator[float]:
    low, high = RANGES.get(name, (-_FAR, _FAR))
    given = {float(number) for number in _NUMBER.findall(without_strings(source))}
    step = 1 if kind is int else 1e-6
    around = {each + d for number in given for each in (number, -number) for d in (-step, 0, step)}
    around |= {low, min(high, _FAR)}
    yield from (kind(each) for each in sorted(around) if low <= each <= high)


def _facts(slots: Sequence[Slot], values: Sequence[Any]) -> Mapping[str, Any]:
    facts: dict[str, Any] = {}
    for (name, key), value in zip(slots, values, strict=True):
        if key or name in MAPS:
            facts.setdefault(name, {})[key] = value
        else:
            facts[name] = value
    return facts
