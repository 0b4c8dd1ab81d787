"""What an upstream's errors may say to a caller: everything but the gateway's secrets, within bounds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from gateway.errors import ApiError, error_body
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.errors import MAX_ERROR_BYTES, MAX_RETRY_AFTER
from gateway.providers.upstream.redaction import Redactor
from tests.gateway.providers.upstream.provider_calls import (
    KEY,
    call,
    collect,
    event,
    failure,
    piece,
    provider,
    streaming,
)
from tests.gateway.providers.upstream.scripted_server import always, response, serving

pytestmark = pytest.mark.usefixtures("transport", "no_secret_in_the_log")

NAMES = ("message", "type", "code", "param")
ENCODED: dict[str, Callable[[str], str]] = {
    "verbatim": lambda key: key,
    "twice": lambda key: key + key,
    "in a header": lambda key: f"Authorization: Bearer {key}",
    "json escaped": lambda key: json.dumps({"key": key}).replace("-", "\\u002d"),
    "percent encoded": lambda key: quote(key, safe="").replace("-", "%2D").replace("c", "%63"),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of the header": lambda key: base64.b64encode(f"Bearer {key} ".encode()).decode(),
    "base64url": lambda key: base64.urlsafe_b64encode(f"ab{key}".encode()).decode(),
}


def shown(error: ApiError) -> str:
    return error_body(error).decode() + repr(error.headers) + repr(error.args)


def leaks(text: str) -> bool:
    """True when the key's secret part shows in any encoding used here."""
    pieces = [base64.b64encode(b"x" * shift + KEY.encode())[4:-4].decode() for shift in range(3)]
    return "canary" in text or "%63anary" in text or any(part in text for part in pieces)


@pytest.mark.parametrize("encode", ENCODED.values(), ids=ENCODED.keys())
@pytest.mark.parametrize("status", [400, 503])
async def test_no_field_of_an_error_shows_the_key(encode: Callable[[str], str], status: int) -> None:
    bad = f"bad {encode(KEY)}!"
    error = dict.fromkeys(NAMES, bad) | {"extra": bad}
    body = json.dumps({"error": error, "extra": bad}).encode()
    async with serving(always(response(body, status, retry_after=KEY, x_key=KEY))) as server:
        found = await failure(server)
    assert found.status == status
    assert not leaks(shown(found))
    for name in NAMES:
        assert getattr(found, name).startswith("bad ") and getattr(found, name).endswith("!")


async def test_no_field_of_an_error_in_a_stream_shows_the_key() -> None:
    body = json.dumps({"error": dict.fromkeys(NAMES, f"bad {KEY}")}).encode()
    async with serving(streaming(event(piece("a")), event(body))) as server:
        answer = await provider(server).chat(call(stream=True))
        with pytest.raises(ApiError) as caught:
            await collect(answer)
    assert [getattr(caught.value, name) for name in NAMES] == ["bad ***"] * 4
    assert not leaks(shown(caught.value))


@pytest.mark.parametrize("name", NAMES)
def test_key_where_a_field_is_cut_is_removed_first(name: str) -> None:
    is_message = name == "message"
    limit = upstream_errors.MAX_MESSAGE_CHARACTERS if is_message else upstream_errors.MAX_NAME_CHARACTERS
    for shift in range(len(KEY) + 1):
        error = {"message": "m", name: "x" * (limit - shift) + KEY + "y" * 100}
        found = upstream_errors.of_error_body(json.dumps({"error": error}).encode(), Redactor(KEY), 400)
        assert len(getattr(found, name)) <= limit
        assert set(getattr(found, name)) <= set("xy*")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": "m", "code": 402}, ("upstream_error", "402", None)),
        ({"message": "m", "type": 5, "code": [1], "param": {}}, ("upstream_error", None, None)),
        ({"message": "m", "type": "", "code": True, "param": ["a"]}, ("upstream_error", None, None)),
        ({"message": "m", "code": 10**30}, ("upstream_error", str(10**30), None)),
        ("m", ("upstream_error", None, None)),
    ],
)
async def test_odd_members_of_an_error(error: object, expected: tuple[str, str | None, str | None]) -> None:
    async with serving(always(response(json.dumps({"error": error}).encode(), 500))) as server:
        found = await failure(server)
    assert found.message == "m"
    assert (found.type, found.code, found.param) == expected


async def test_deep_error_is_the_upstreams_failure() -> None:
    body = b'{"error": {"message": "m", "param": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    async with serving(always(response(body, 400))) as server:
        assert (await failure(server)).status == 502


async def test_a_long_error_keeps_its_status() -> None:
    async with serving(always(response(b"x" * (2 * MAX_ERROR_BYTES), 503, retry_after="7"))) as server:
        found = await failure(server)
    assert (found.status, found.upstream_status, found.headers) == (503, 503, {"retry-after": "7"})


@pytest.mark.parametrize("delay", ["7s", "6.5s", "1000000s", "9" * 5000 + "s"])
def test_a_delay_of_google_has_a_bound(delay: str) -> None:
    body = json.dumps({"error": {"message": "m", "details": [{"retryDelay": delay}]}}).encode()
    found = upstream_errors.of_status(429, {}, body, "m", Redactor())
    assert found.headers == {"retry-after": MAX_RETRY_AFTER if len(delay) > 6 else "7"}


@pytest.mark.parametrize(
    ("value", "passed"),
    [
        ("7", "7"),
        (" 86400 ", "86400"),
        ("Wed, 21 Oct 2037 07:28:00 GMT", "Wed, 21 Oct 2037 07:28:00 GMT"),
        ("-1", None),
        ("1.5", None),
        ("9" * 5000, MAX_RETRY_AFTER),
        ("10000000", MAX_RETRY_AFTER),
        ("0" * 99 + "7", "7"),
        ("0", "0"),
        ("Wed, 21 Oct 20370 07:28:00 GMT", MAX_RETRY_AFTER),
        ("soon", None),
        (f"Wed, 21 Oct 2037 07:28:00 GMT {KEY}", None),
        ("7\r\nretry-after: 8", None),
        ("\xb2", None),
    ],
)
async def test_only_a_valid_retry_after_is_passed_on(value: str, passed: str | None) -> None:
    head = f"HTTP/1.1 429 X\r\nretry-after: {value}\r\ncontent-length: 0\r\n\r\n"
    async with serving(always(head.encode("latin-1"))) as server:
        found = await failure(server)
    assert found.headers == ({} if passed is None else {"retry-after": passed})
