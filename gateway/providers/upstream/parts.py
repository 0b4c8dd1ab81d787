"""The parts of a chat message that other APIs take: text, and images as data or as a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.requests import refusals
from gateway.requests.messages import content_text

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
