"""The parts of a chat message that other APIs take: text, and images as data or as a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.requests import refusals
from gateway.requests.messages import CLIENT_FIELDS, FIELDS, READ_FIELDS, content_text

_DATA_URL = re.compile(r"data:(?P<media_type>[\w.+-]+/[\w.+-]+);base64,(?P<data>[A-Za-z0-9+/=_-]+)\Z")
_URL_SCHEMES = ("https://", "http://")


class Image(NamedTuple):
    """Base64 `data` of a media type, or a URL."""

    media_type: str = ""
    data: str = ""
    url: str = ""


def message_parts(
    message: Mapping[str, Any], where: str, schemes: tuple[str, ...] = _URL_SCHEMES
) -> list[str | Image]:
    """The texts and images of a user's message or a tool's; image URLs begin with one of `schemes`.

    Raises InvalidRequest naming the field.
    """
    content = message.get("content")
    if isinstance(content, list) and content:
        return [_part(part, f"{where}.content[{index}]", schemes) for index, part in enumerate(content)]
    text = content_text(dict(message), where)
    return [text] if text else []


def ignored_fields(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields of messages and parts that no translation carries, for the answer's header.

    Raises InvalidRequest naming a field that is unknown, or whose content would be lost.
    """
    ignored = set()
    for index, message in enumerate(messages):
        for name, value in message.items():
            if name not in FIELDS:
                raise refusals.unknown_field(name, FIELDS, f"messages[{index}].")
            if name not in (*READ_FIELDS, *CLIENT_FIELDS) and value not in (None, [], ""):
                where = f"messages[{index}].{name}"
                raise refusals.unsupported(where, f"'{name}' in a message is not supported yet")
        if message.get("name") and message.get("role") != "tool":  # a tool's follows from its call
            ignored.add("messages.name")
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            image = part.get("image_url") if isinstance(part, dict) else None
            if isinstance(image, dict) and image.get("detail") not in (None, "auto"):
                ignored.add("messages.content.image_url.detail")
    return sorted(ignored)


def _part(part: object, where: str, schemes: tuple[str, ...]) -> str | Image:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in ("text", "image_url"):
        raise refusals.wrong_value(f"{where}.type", "expected 'text' or 'image_url'")
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise refusals.wrong_type(f"{where}.text", "a string")
        return str(part["text"])
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str):
        raise refusals.missing(f"{where}.image_url.url")
    if found := _DATA_URL.match(url):
        return Image(**found.groupdict())
    if not url.startswith(schemes):
        expected = "expected a base64 data URL" + "".join(f" or {scheme}…" for scheme in schemes)
        raise refusals.wrong_value(f"{where}.image_url.url", expected)
    return Image(url=url)
