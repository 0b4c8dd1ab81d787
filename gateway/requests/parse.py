"""Bytes → dict → typed request, each parsed once; every error is a 400 that names the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_type_hints

import msgspec

from backend.identifiers import CHOICE
from gateway.errors import InvalidRequest
from gateway.requests import refusals, unknown_fields
from gateway.requests.body_bounds import check_items, check_size
from gateway.requests.integral_floats import with_integers

T = TypeVar("T", bound=msgspec.Struct)

_decode = msgspec.json.Decoder().decode
_AT_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = "Object contains unknown field `"
_NAMED = re.compile(r"field `(?P<name>[^`]*)`")
_TYPES = re.compile(r"`([^`]*)`")
_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}


def decode_body(raw: bytes) -> dict[str, Any]:
    """The body as a dict. Raises InvalidRequest for anything but one JSON object in UTF-8 within bounds."""
    check_size(raw)
    try:
        body = _decode(raw)
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:  # malformed, not UTF-8, NaN, a number out of range
        detail = "it is empty" if not raw else json_fault(error)
        raise InvalidRequest(f"The body is not valid JSON: {detail}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise InvalidRequest(
            f"The body must be a JSON object, not {_json_type(body)}.", code="invalid_json"
        ) from None
    check_items(body)
    return body


def json_fault(error: ValueError) -> str:
    """What is wrong with a text that msgspec cannot decode, in words for its author."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    text = _AT_PATH.sub("", str(error).removeprefix("JSON is malformed: "))
    if text == "Input data was truncated":
        return "it ends too early"
    return _in_json_terms(text[:1].lower() + text[1:])


def typed(body: dict[str, Any], kind: type[T]) -> T:
    """The body as `kind`; an integral float such as 1.0 is an integer where the field is one.

    Raises InvalidRequest naming the first field that does not match.
    """
    try:
        try:
            return msgspec.convert(body, kind)
        except msgspec.ValidationError:  # rare: only now look at every field
            return msgspec.convert(with_integers(body, kind), kind)
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError as error:
        unknown = _unknown_field(str(error), body)
        if unknown is None:
            raise _refusal(str(error), body, kind) from None
    path, name = unknown
    known = () if path else kind.__struct_fields__
    unknown_fields.note(name, known, f"{path}." if path else "")
    return typed(_without(body, path, name), kind)


def typed_at(value: object, kind: type[T], where: str) -> T:
    """The field at `where` as `kind`. Raises InvalidRequest naming its fields from the body's root."""
    if not isinstance(value, dict):
        raise refusals.wrong_type(where, "an object")
    collected = unknown_fields.collected()
    num_before = len(collected)
    try:
        return typed(value, kind)
    except InvalidRequest as error:
        raise _placed(error, where) from None
    finally:
        collected[num_before:] = [_placed(error, where) for error in collected[num_before:]]


def _placed(error: InvalidRequest, where: str) -> InvalidRequest:
    """The error of a field below `where`."""
    field = error.param
    place = f"{where}.{field}" if field else where
    message = error.message.replace(f"'{field or 'body'}'", f"'{place}'", 1)
    return InvalidRequest(message, param=place, code=error.code)


def _unknown_field(message: str, body: dict[str, Any]) -> tuple[str, str] | None:
    """The path of the object with an unknown field, and its name; None for other faults."""
    if not message.startswith(_UNKNOWN):
        return None
    at = _AT_PATH.search(message)
    places = [(at["path"], message[: at.start()])] if at else []
    for path, text in [*places, ("", message)]:  # a name may look like a path
        name = text.removeprefix(_UNKNOWN).removesuffix("`")
        if "..." not in path and name in _at(body, path):
            return path, name
    return None


def _at(body: dict[str, Any], path: str) -> Any:  # noqa: ANN401 - any JSON value
    """What is at a path of msgspec's; () for one that leads nowhere."""
    found: Any = body
    for step in _steps(path):
        try:
            found = found[step]
        except (LookupError, TypeError):
            return ()
    return found if isinstance(found, dict) else ()


def _steps(path: str) -> list[int | str]:
    return [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", path)]


def _without(body: dict[str, Any], path: str, name: str) -> dict[str, Any]:
    """A copy of the body, without one field of the object at `path`."""
    found: dict[str, Any] = dict(body)
    inner: Any = found
    for step in _steps(path):
        inner[step] = inner[step].copy()
        inner = inner[step]
    inner.pop(name, None)
    return found


def json_text(value: object, param: str, max_chars: int) -> str:
    """A field's value as JSON. Raises InvalidRequest for more than `max_chars` or too deep nesting."""
    try:
        text = msgspec.json.encode(value).decode()
    except RecursionError:
        raise InvalidRequest(
            f"'{param}' is nested too deeply. Send a flatter one.", param=param, code="invalid_value"
        ) from None
    if len(text) > max_chars:
        raise InvalidRequest(
            f"'{param}' has {len(text)} characters as JSON. Send at most {max_chars}.",
            param=param,
            code="invalid_value",
        )
    return text


def _refusal(message: str, body: dict[str, Any], kind: type[msgspec.Struct]) -> InvalidRequest:
    """The error for a message of msgspec, which names the field as ` - at `$.path``."""
    at = _AT_PATH.search(message)
    path = at["path"].removesuffix("[...]") if at else ""
    text = message[: at.start()] if at else message
    named = _NAMED.search(text)
    if message.startswith(_UNKNOWN):  # below keys that msgspec does not name
        return refusals.unknown_field(
            text.removeprefix(_UNKNOWN).removesuffix("`"), (), f"{path}." if path else ""
        )
    if named and "missing required field" in text:
        return refusals.missing(f"{path}.{named['name']}" if path else named["name"])
    key, value = _entry_at_fault(body.get(path), kind, path)
    shown = _shown(value)
    expected, got, _ = text.partition(", got")
    expected = _in_json_terms(expected if shown else text)
    return InvalidRequest(
        f"Invalid value for '{path or 'body'}{key}': {expected[:1].lower()}{expected[1:]}{shown}.",
        param=path or None,
        code="invalid_type" if got else "invalid_value",
    )


def _entry_at_fault(value: object, kind: type[msgspec.Struct], path: str) -> tuple[str, object]:
    """The first entry of an object like `logit_bias` that does not match: its key, as `.50`, and value."""
    if isinstance(value, dict) and path in kind.__struct_fields__:
        entry_type = get_type_hints(kind, include_extras=True)[path]
        if not _takes_objects(entry_type):
            return "", value
        for key, each in value.items():
            try:
                msgspec.convert({key: each}, entry_type)
            except msgspec.ValidationError:
                return (f".{key}" if CHOICE.fullmatch(key) else ""), each
    return "", value


def _takes_objects(kind: Any) -> bool:  # noqa: ANN401 - an annotation
    try:
        msgspec.convert({}, kind)
    except msgspec.ValidationError:
        return False
    return True


def _in_json_terms(text: str) -> str:
    """msgspec's message without its type names: `int | null` becomes "an integer or null"."""
    return _TYPES.sub(lambda found: " or ".join(_NAMES.get(n, n) for n in found[1].split(" | ")), text)


def _shown(value: object) -> str:
    """Numbers are quoted, strings never: they may be prompts."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f" (got {value!r})" if len(repr(value)) <= 32 else ""
    return ""


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
