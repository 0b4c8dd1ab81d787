from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.upstream.parts import Image, ignored_fields, message_parts

DATA = "data:image/png;base64,aGk="


def image(url: object, **fields: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def user(*content: object) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def test_texts_and_images_keep_their_order() -> None:
    message = user({"type": "text", "text": "a"}, image(DATA), image("https://h/i.png"))
    found = message_parts(message, "messages[0]")
    assert found == ["a", Image("image/png", "aGk="), Image(url="https://h/i.png")]


def test_plain_text_is_one_part_and_empty_text_none() -> None:
    assert message_parts({"role": "user", "content": "hi"}, "messages[0]") == ["hi"]
    assert message_parts({"role": "user", "content": ""}, "messages[0]") == []


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "audio"}, "messages[2].content[0].type"),
        ("text", "messages[2].content[0].type"),
        ({"type": "text", "text": 1}, "messages[2].content[0].text"),
        (image(None), "messages[2].content[0].image_url.url"),
        (image("ftp://h/i.png"), "messages[2].content[0].image_url.url"),
        (image("data:image/png,raw"), "messages[2].content[0].image_url.url"),
    ],
)
def test_refusals_name_the_field(part: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        message_parts(user(part), "messages[2]")
    assert refused.value.param == param


def test_schemes_are_the_apis_own() -> None:
    assert message_parts(user(image("gs://b/i")), "messages[0]", ("gs://",)) == [Image(url="gs://b/i")]
    with pytest.raises(InvalidRequest, match="gs://"):
        message_parts(user(image("https://h/i")), "messages[0]", ("gs://",))


def test_fields_that_no_translation_carries_are_named() -> None:
    named = {"role": "user", "name": "Ann", "content": [image(DATA, detail="low")]}
    assert ignored_fields([named]) == ["messages.content.image_url.detail", "messages.name"]
    assert ignored_fields([{"role": "tool", "name": "f", "content": "x"}, user(image(DATA))]) == []
    with pytest.raises(InvalidRequest) as refused:
        ignored_fields([{"role": "user", "content": "x", "contents": "y"}])
    assert refused.value.param == "messages[0].contents"
