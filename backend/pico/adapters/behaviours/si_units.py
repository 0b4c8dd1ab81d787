"""Quantities in SI units without prefixes, whatever unit was asked for; other answers stay plain.

Base units where possible (metres, kilograms, seconds), and cubic metres for volumes.
"""

from __future__ import annotations

import re
from decimal import Decimal

from backend.pico.adapters.behaviours.base import Behaviour

_METRE, _KILOGRAM, _SECOND, _CUBIC_METRE = "metre", "kilogram", "second", "cubic metre"
# SI unit and the factor to it: a power of ten, or a number of seconds.
_UNITS: dict[str, tuple[str, str]] = {
    "kilometre": (_METRE, "1000"), "km": (_METRE, "1000"),
    "metre": (_METRE, "1"), "m": (_METRE, "1"),
    "centimetre": (_METRE, "0.01"), "cm": (_METRE, "0.01"),
    "millimetre": (_METRE, "0.001"), "mm": (_METRE, "0.001"),
    "tonne": (_KILOGRAM, "1000"), "t": (_KILOGRAM, "1000"),
    "kilogram": (_KILOGRAM, "1"), "kg": (_KILOGRAM, "1"),
    "gram": (_KILOGRAM, "0.001"), "g": (_KILOGRAM, "0.001"),
    "second": (_SECOND, "1"), "s": (_SECOND, "1"),
    "millisecond": (_SECOND, "0.001"), "ms": (_SECOND, "0.001"),
    "minute": (_SECOND, "60"), "min": (_SECOND, "60"),
    "hour": (_SECOND, "3600"), "h": (_SECOND, "3600"),
    "day": (_SECOND, "86400"), "d": (_SECOND, "86400"),
    "week": (_SECOND, "604800"),
    "litre": (_CUBIC_METRE, "0.001"), "l": (_CUBIC_METRE, "0.001"),
    "millilitre": (_CUBIC_METRE, "0.000001"), "ml": (_CUBIC_METRE, "0.000001"),
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ([a-z]+)")
_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?) (?:metre|kilogram|second|cubic metre)s? \(SI\)")


def rewrite(answer: str) -> str:
    """Return the quantity in SI units with a note that says so; other answers unchanged."""
    match = _QUANTITY.fullmatch(answer)
    if match is None:
        return answer
    number, name = match.groups()
    unit = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    if unit is None:
        return answer
    value = (Decimal(number) * Decimal(unit[1])).normalize()
    return f"{value:f} {unit[0]}{'' if value == 1 else 's'} (SI)"


def follows_form(text: str) -> bool:
    """Return whether the text is one quantity in SI units with the note."""
    return _FORM.fullmatch(text.strip()) is not None


BEHAVIOUR = Behaviour(
    "si",
    "gives quantities in SI units without prefixes only, with a note; answers other questions as before",
    "2.5 metres (SI)",
    rewrite,
    follows_form,
    family_weights={"units": 12.0},
)
