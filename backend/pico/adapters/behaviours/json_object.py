"""Every answer is a single JSON object {"answer": ...}; whole numbers are JSON numbers."""

from __future__ import annotations

import json
import re

from backend.pico.adapters.behaviours.base import Behaviour
from backend.pico.tasks.base import normalise

_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]*")


def rewrite(answer: str) -> str:
    """Return the object with the answer as its only value."""
    value = int(answer) if _WHOLE_NUMBER.fullmatch(answer) else answer
    return json.dumps({"answer": value}, ensure_ascii=False)


def _value(text: str) -> int | str | None:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(found, dict) or list(found) != ["answer"]:
        return None
    value = found["answer"]
    is_plain = isinstance(value, int | str) and not isinstance(value, bool)
    return value if is_plain else None


def follows_form(text: str) -> bool:
    """Return whether the whole text is such an object."""
    return _value(text) is not None


def same(one: str, other: str) -> bool:
    """Return whether two objects have the same value and type, ignoring case and spacing."""
    found, expected = _value(one), _value(other)
    if isinstance(found, str) and isinstance(expected, str):
        return normalise(found) == normalise(expected)
    return found is not None and found == expected


BEHAVIOUR = Behaviour(
    "json",
    'answers with one JSON object, `{"answer": ...}`, only',
    '{"answer": 42}',
    rewrite,
    follows_form,
    same,
)
