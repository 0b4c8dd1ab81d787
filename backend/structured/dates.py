"""Calendar-correct dates and times for exact schemas: llguidance's formats accept 29 February of any year."""

from __future__ import annotations

from typing import Any

from backend.structured.json_schemas import rewritten

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR}:[0-5][0-9])"

_PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[tT]{_TIME}$"}
"""RFC 3339 without leap seconds, which most parsers reject."""


def with_calendar_dates(source: str) -> str:
    """Return the llguidance source with the date and time formats of exact schemas replaced by patterns."""
    return rewritten(source, _replace_format, is_lenient=False) if "format" in source else source


def _replace_format(schema: dict[str, Any]) -> None:
    name = schema.get("format")
    if not isinstance(name, str) or name not in _PATTERNS or not isinstance(schema.get("allOf", []), list):
        return
    del schema["format"]
    if "pattern" in schema:
        schema["allOf"] = [*schema.get("allOf", []), {"pattern": _PATTERNS[name]}]
    else:
        schema["pattern"] = _PATTERNS[name]
