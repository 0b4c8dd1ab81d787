"""Errors shared by all parsers of request fields. `where` is the field's path from the body's root.

They name fields, types and allowed values; of the request they quote identifiers and numbers, no other text.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from backend.identifiers import CHOICE, KEY, quoted
from gateway.errors import InvalidRequest

MAX_NAME_CHARS = 64
ODD_NAME = "with a name that no parameter has"


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


def wrong_value(where: str, why: str, value: object = None) -> InvalidRequest:
    """A field's value is not allowed; `value` is that of a closed enumeration, to be quoted."""
    return InvalidRequest(
        f"Invalid value for '{where}'{got(value)}: {why}.", param=where, code="invalid_value"
    )


def got(value: object) -> str:
    """` (got 'high')` for a number or a value as enumerations have them, else ""."""
    shown = repr(value) if isinstance(value, int | float) else quoted(value, CHOICE)
    return f" (got {shown})" if shown and len(shown) <= MAX_NAME_CHARS else ""


def unsupported(where: str, what: str) -> InvalidRequest:
    """A documented use of a field that we do not support; `what` is the sentence for the caller."""
    return InvalidRequest(f"{what[:1].upper()}{what[1:]}.", param=where, code="unsupported_parameter")


def shown_name(name: str) -> str:
    """A field's name or a tool's type for a response header; "?" for one that the API's cannot be."""
    return name if KEY.fullmatch(name) else "?"


def unknown_field(name: str, known: Iterable[str], prefix: str = "") -> InvalidRequest:
    """A field that is not in the API; the error suggests the nearest of `known`."""
    if not KEY.fullmatch(name):  # may be text; edit distances to a long one would cost much
        return InvalidRequest(
            f"Unknown parameter in '{prefix[:-1] or 'body'}', {ODD_NAME}.",
            param=prefix[:-1] or None,
            code="unknown_parameter",
        )
    near = get_close_matches(name, list(known), n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return InvalidRequest(
        f"Unknown parameter: '{prefix}{name}'.{hint}", param=prefix + name, code="unknown_parameter"
    )
