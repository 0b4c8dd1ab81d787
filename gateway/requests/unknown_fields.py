"""Fields that no API has: refused by name, or collected until the model is known that may ignore them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar

from gateway.errors import InvalidRequest
from gateway.requests import refusals

MAX_COLLECTED = 64
"""Unknown fields of one request; the next one is refused."""
_INDEX = re.compile(r"\[\d+\]")
_collected: ContextVar[list[InvalidRequest] | None] = ContextVar("unknown_fields", default=None)


class collecting:
    """Collects the refusals of unknown fields instead of raising them."""

    def __enter__(self) -> list[InvalidRequest]:
        """The list of them."""
        found: list[InvalidRequest] = []
        self._token = _collected.set(found)
        return found

    def __exit__(self, *_: object) -> None:
        """Raise them again."""
        _collected.reset(self._token)


def collected() -> list[InvalidRequest]:
    """The errors so far; a list of its own when none are collected."""
    found = _collected.get()
    return [] if found is None else found


def note(name: str, known: Iterable[str], prefix: str = "") -> None:
    """An unknown field. Raises InvalidRequest unless they are collected."""
    note_error(refusals.unknown_field(name, known, prefix))


def note_error(error: InvalidRequest) -> None:
    """The same with its refusal."""
    found = _collected.get()
    if found is None or len(found) >= MAX_COLLECTED:
        raise error
    found.append(error)


def names(errors: Iterable[InvalidRequest]) -> list[str]:
    """What a response's header says that was ignored, without the numbers of messages and items."""
    return [_INDEX.sub("", _name(error)) for error in errors]


def _name(error: InvalidRequest) -> str:
    if refusals.ODD_NAME in error.message:
        return f"{error.param}.?" if error.param else "?"
    return error.param or "?"
