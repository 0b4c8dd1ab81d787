from __future__ import annotations

import pytest

from gateway.gateway_url import gateway_url
from gateway.settings import SettingsError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://127.0.0.1:8080", (False, "127.0.0.1", 8080, "")),
        ("https://ai.example/v1/", (True, "ai.example", None, "")),
        ("https://ai.example/team/v1", (True, "ai.example", None, "/team")),
        ("http://[::1]:8080/v1", (False, "::1", 8080, "")),
    ],
)
def test_a_url_names_the_gateway_with_or_without_v1(text: str, parts: tuple[object, ...]) -> None:
    assert gateway_url(text) == parts


@pytest.mark.parametrize(
    "text", ["ai.example:8080", "ftp://ai.example", "http://", "http://a:0", "http://[x"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="must begin with http:// or https://") as caught:
        gateway_url(text)
    assert repr(text) in str(caught.value)
