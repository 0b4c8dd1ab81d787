"""Errors shared by all parsers of request fields. `where` is the field's path from the body's root."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from gateway.errors import InvalidRequest

MAX_NAME_CHARS = 64
MAX_QUOTED_CHARS = 16
"""Longer values are not quoted in errors: they may be user text in the wrong field."""


def missing(where: str) -> InvalidRequest:
    """A required field is absent."""
    return InvalidRequest(
        f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter"
    )


def wrong_type(where: str, expected: str) -> InvalidRequest:
    """A field has another JSON type than `expected`, such as "a string"."""
    return InvalidRequest(
        f"Invalid type for '{where}': expected {expected}.", param=where, code="invalid_type"
    )


def wrong_value(where: str, why: str, got: object = None) -> InvalidRequest:
    """A field's value is not allowed; `got` is quoted when it is a short string."""
    shown = f" (got {got!r})" if isinstance(got, str) and len(got) <= MAX_QUOTED_CHARS else ""
    return InvalidRequest(f"Invalid value for '{where}'{shown}: {why}.", param=where, code="invalid_value")


def unsupported(where: str, what: str) -> InvalidRequest:
    """A documented use of a field that we do not support; `what` is the sentence for the caller."""
    return InvalidRequest(f"{what[:1].upper()}{what[1:]}.", param=where, code="unsupported_parameter")


def unknown_field(name: str, known: Iterable[str], prefix: str = "") -> InvalidRequest:
    """A field that is not in the API; the error suggests the nearest of `known`."""
    if len(name) > MAX_NAME_CHARS:  # edit distances to it would cost more than the rest of the request
        name, known = name[:MAX_NAME_CHARS] + "…", ()
    near = get_close_matches(name, list(known), n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return InvalidRequest(
        f"Unknown parameter: '{prefix}{name}'.{hint}", param=prefix + name, code="unknown_parameter"
    )
