"""HTTP/1.1 framing against the real application: one answer per request, however the bytes are split."""

from __future__ import annotations

import json

import pytest

from gateway.providers.fake import FakeProvider
from gateway.settings import HttpLimits
from tests.gateway.conftest import MakeApp
from tests.gateway.web.conftest import Serve
from tests.gateway.web.raw import SPLITS, RawServer, Split, by_line, chunked, request, whole

KEY = "authorization: Bearer sk-test"
JSON = "content-type: application/json"
CHAT = json.dumps({"model": "ours", "messages": [{"role": "user", "content": "hi"}]}).encode()
PATH = "/v1/chat/completions"
MODELS = request("GET", "/v1/models", KEY)
LAST = request("GET", "/v1/models", KEY, "connection: close")
LIMITS = HttpLimits()
every_split = pytest.mark.parametrize("split", SPLITS)


@pytest.fixture
async def server(serve: Serve, make_app: MakeApp) -> RawServer:
    """The real application with one key and the fake models."""
    return serve(make_app(api_keys=("sk-test",)))


def post(*lines: str, body: bytes = CHAT) -> bytes:
    return request("POST", PATH, KEY, JSON, *lines, body=body)


@every_split
async def test_pipelined_requests_are_answered_in_order(server: RawServer, split: Split) -> None:
    body = request("POST", PATH, KEY, JSON, "transfer-encoding: chunked") + chunked(CHAT)
    replies = await server.ask(post() + MODELS + body + b"\r\n" + LAST, split)
    assert [reply.status for reply in replies] == [200] * 4
    assert [reply.json["object"] for reply in replies] == ["chat.completion", "list"] * 2
    assert replies[3].headers["connection"] == "close" and "connection" not in replies[0].headers


UPGRADES = {
    "h2c": (
        "connection: Upgrade, HTTP2-Settings",
        "upgrade: h2c",
        "http2-settings: AAMAAABkAAQCAAAAAAIAAAAA",
    ),
    "websocket": (
        *("connection: Upgrade", "Upgrade: websocket", "sec-websocket-version: 13"),
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "in capitals": ("CONNECTION: UPGRADE", "UPGRADE: TLS/1.0"),
    "padded": ("connection:\tupgrade ", "upgrade : h2c".replace(" :", ":") + " "),
}


@every_split
@pytest.mark.parametrize("lines", UPGRADES.values(), ids=UPGRADES)
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_an_upgrade_is_ignored_and_ends_the_connection(
    server: RawServer, fake: FakeProvider, split: Split, lines: tuple[str, ...], is_chunked: bool
) -> None:
    inner = MODELS + LAST  # what would run if the body were taken for requests
    body = CHAT + b" " * 8
    offer = post(*lines, body=body)
    if is_chunked:
        offer = request("POST", PATH, KEY, JSON, "transfer-encoding: chunked", *lines) + chunked(body)
    replies = await server.ask(offer + inner, split)
    assert [reply.status for reply in replies] == [200]
    assert replies[0].headers["connection"] == "close" and replies[0].json["object"] == "chat.completion"
    assert len(fake.asked) == 1


@every_split
async def test_the_body_of_an_upgrade_is_no_request(
    server: RawServer, fake: FakeProvider, split: Split
) -> None:
    offer = request("POST", PATH, KEY, JSON, *UPGRADES["h2c"], body=post())
    replies = await server.ask(offer, split)
    assert [reply.error[0] for reply in replies] == [400]  # the JSON parser's
    replies = await server.ask(MODELS + offer, split)  # in the second pipelined head
    assert [reply.status for reply in replies] == [200, 400]
    assert fake.asked == []


@every_split
@pytest.mark.parametrize("lines", UPGRADES.values(), ids=UPGRADES)
async def test_an_upgrade_without_a_body(server: RawServer, split: Split, lines: tuple[str, ...]) -> None:
    replies = await server.ask(request("GET", "/v1/models", KEY, *lines) + MODELS, split)
    assert [reply.status for reply in replies] == [200]
    assert replies[0].headers["connection"] == "close"


@every_split
async def test_connect_is_refused_and_ends_the_connection(server: RawServer, split: Split) -> None:
    replies = await server.ask(
        request("CONNECT", "example.com:443", KEY, "content-length: 3") + MODELS, split
    )
    assert [reply.error[0] for reply in replies] == [404]
    assert replies[0].headers["connection"] == "close"


@every_split
async def test_an_authorization_in_a_trailer_authorises_nothing(
    server: RawServer, fake: FakeProvider, split: Split
) -> None:
    trailers = KEY.encode() + b"\r\nx-more: y\r\n"
    unknown = request("POST", PATH, JSON, "transfer-encoding: chunked", "connection: close")
    replies = await server.ask(unknown + chunked(CHAT, trailers=trailers), split)
    assert replies[0].error == (401, "invalid_api_key")
    assert fake.asked == []
    known = request("POST", PATH, KEY, JSON, "transfer-encoding: chunked")
    replies = await server.ask(known + chunked(CHAT, trailers=trailers) + LAST, split)
    assert [reply.status for reply in replies] == [200, 200]  # trailers themselves are fine


POST = b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: x\r\n"
MALFORMED = {
    "no HTTP": b"nonsense\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + b"x" * 200,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "HTTP/2.0": b"GET /v1/models HTTP/2.0\r\nhost: x\r\n\r\n",
    "no Host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /v1/models HTTP/1.1\r\nhost: x\r\nHost: x\r\n\r\n",
    "two Hosts, HTTP/1.0": b"GET /v1/models HTTP/1.0\r\nhost: x\r\nHost: y\r\n\r\n",
    "length and coding": POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "two equal lengths": POST + b"content-length: 1\r\ncontent-length: 1\r\n\r\na",
    "list of lengths": POST + b"content-length: 1, 1\r\n\r\na",
    "negative length": POST + b"content-length: -5\r\n\r\n",
    "signed length": POST + b"content-length: +5\r\n\r\nabcde",
    "huge length": POST + b"content-length: 99999999999999999999\r\n\r\n",
    "hexadecimal length": POST + b"content-length: 0x5\r\n\r\nabcde",
    "gzip, chunked": POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"transfer-encoding: identity\r\n\r\n",
    "misspelt": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked, HTTP/1.0": POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "space in a name": POST + b"a header: x\r\n\r\n",
    "space before a colon": POST + b"content-length : 1\r\n\r\na",
    "no colon": POST + b"content-length\r\n\r\n",
    "empty name": POST + b": x\r\n\r\n",
    "folded header": POST + b"x-folded: a\r\n b\r\n\r\n",
    "folded first header": b"GET /v1/models HTTP/1.1\r\n host: x\r\n\r\n",
    "bare LF": b"GET /v1/models HTTP/1.1\nhost: x\n\n",
    "bare LF at the end": POST + b"content-length: 1\n\r\na",
    "bare CR": POST + b"x-cr: a\rb\r\n\r\n",
    "NUL": POST + b"x-nul: a\0b\r\n\r\n",
    "NUL in a name": POST + b"x\0: a\r\n\r\n",
    "not ASCII target": b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n",
}


@every_split
@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_heads_are_refused(
    server: RawServer, fake: FakeProvider, data: bytes, split: Split
) -> None:
    replies = await server.ask(data + b"\r\n" + MODELS, split)
    assert [reply.error for reply in replies] == [(400, "invalid_http")]
    assert replies[0].headers["connection"] == "close" and "x-request-id" in replies[0].headers
    replies = await server.ask(MODELS + data + MODELS, split)  # after the answer to a good one
    assert [reply.status for reply in replies] == [200, 400]
    assert fake.asked == []


CHUNKS = {
    "no size": b"\r\nab\r\n0\r\n\r\n",
    "no hexadecimal size": b"zz\r\nab\r\n0\r\n\r\n",
    "size with 0x": b"0x2\r\nab\r\n0\r\n\r\n",
    "negative size": b"-2\r\nab\r\n0\r\n\r\n",
    "size with a sign": b"+2\r\nab\r\n0\r\n\r\n",
    "size with a space": b"2 \r\nab\r\n0\r\n\r\n",
    "size of 17 digits": b"10000000000000002\r\nab\r\n0\r\n\r\n",
    "too long": b"2\r\nabc\r\n0\r\n\r\n",
    "bare LF after the size": b"2\nab\r\n0\r\n\r\n",
    "bare LF after the data": b"2\r\nab\n0\r\n\r\n",
    "bare LF in an extension": b"2;a\nab\r\n0\r\n\r\n",
    "bad trailer": b"2\r\nab\r\n0\r\na b: c\r\n\r\n",
}


@every_split
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
async def test_malformed_chunks_are_refused(
    server: RawServer, fake: FakeProvider, chunks: bytes, split: Split
) -> None:
    head = request("POST", PATH, KEY, JSON, "transfer-encoding: chunked")
    replies = await server.ask(head + chunks + MODELS, split)
    assert [reply.error for reply in replies] == [(400, "invalid_http")]
    assert replies[0].headers["connection"] == "close"
    assert fake.asked == []


@pytest.mark.parametrize("end", [b"", b": x HTTP/1.1\r\n\r\n"])
@pytest.mark.parametrize("num_bytes", [LIMITS.max_head_bytes, 20 * LIMITS.max_head_bytes])
@pytest.mark.parametrize(
    "start", [b"GET /", POST + b"x-long: ", POST + b"x-", POST + b"x-none:" + b" " * 100], ids=repr
)
async def test_endless_lines_are_refused(server: RawServer, start: bytes, num_bytes: int, end: bytes) -> None:
    client = await server.connect()
    await client.send(start, *[b"x" * 8192] * (num_bytes // 8192), end)
    assert [reply.error for reply in await client.replies()] == [(431, "headers_too_large")]


@every_split
async def test_heads_have_limits(serve: Serve, make_app: MakeApp, split: Split) -> None:
    server = serve(make_app(), max_head_bytes=600, max_headers=10)
    lines = [f"x-{i}: y" for i in range(9)]
    fits = request("GET", "/v1/models?" + "x" * 400, *lines[:8], "connection: close")
    assert [reply.status for reply in await server.ask(fits, split)] == [200]
    refused = [
        request("GET", "/v1/models", *lines, "connection: close"),
        request("GET", "/v1/models?" + "x" * 600),
        request("GET", "/v1/models", "x-long: " + "y" * 600),
        request("GET", "/v1/models", *[f"x-{i}: {'y' * 60}" for i in range(9)]),
    ]
    for data in refused:
        for before in (b"", request("GET", "/v1/models")):
            *good, refusal = await server.ask(before + data, split)
            assert refusal.error == (431, "headers_too_large")
            assert len(good) == bool(before)


TRAILERS = {
    "many": b"a:\r\n" * 200_000,
    "long": b"".join(b"x-%d: " % i + b"y" * 4096 + b"\r\n" for i in range(200)),
    "endless": b"a" * 1_000_000,
    "endless value": b"a: " + b"b" * 1_000_000,
}


@pytest.mark.parametrize("trailers", TRAILERS.values(), ids=TRAILERS)
async def test_trailers_have_the_limits_of_headers(
    server: RawServer, fake: FakeProvider, trailers: bytes
) -> None:
    head = request("POST", PATH, KEY, JSON, "transfer-encoding: chunked")
    pieces = [trailers[i : i + 8192] for i in range(0, len(trailers), 8192)]
    client = await server.connect()
    await client.send(head + chunked(CHAT)[:-2], *pieces)
    assert [reply.error for reply in await client.replies()] == [(431, "headers_too_large")]
    assert fake.asked == []


async def test_an_endless_chunk_extension_is_refused(server: RawServer, fake: FakeProvider) -> None:
    head = request("POST", PATH, KEY, JSON, "transfer-encoding: chunked")
    client = await server.connect()
    await client.send(head + b"2;a=", *[b"b" * 8192] * 40)
    assert [reply.status for reply in await client.replies()] == [431]
    assert fake.asked == []


@pytest.mark.parametrize("split", [whole, by_line])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_bodies_over_the_limit_are_refused(
    serve: Serve, make_app: MakeApp, split: Split, is_chunked: bool
) -> None:
    server = serve(make_app(max_body_bytes=1000))
    body = b"\r\n" * 300_000
    data = request("POST", PATH, JSON, body=body)
    if is_chunked:
        data = request("POST", PATH, JSON, "transfer-encoding: chunked") + chunked(body, 1000)
    client = await server.connect()
    await client.send(*split(data)[:2000])  # far fewer than announced: the answer comes before the end
    replies = await client.replies()
    assert [reply.error for reply in replies] == [(413, "request_too_large")]
    assert replies[0].headers["connection"] == "close"


async def test_an_answer_before_the_whole_body_ends_the_connection(
    server: RawServer, fake: FakeProvider
) -> None:
    """The rest of the body is never run as a request."""
    client = await server.connect()
    await client.send(request("POST", PATH, JSON, f"content-length: {len(CHAT + LAST)}") + CHAT)
    head = await client.read_until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401") and b"connection: close" in head
    await client.send(LAST + LAST)
    assert b"HTTP/1.1" not in await client.reader.read()
    assert fake.asked == []


@every_split
async def test_bodies_are_not_counted_as_headers(server: RawServer, split: Split) -> None:
    body = CHAT + b" " * 3000
    data = post(body=body) + post("connection: close", body=body)
    assert [reply.status for reply in await server.ask(data, split)] == [200, 200]


@every_split
async def test_expect_continue(server: RawServer, split: Split) -> None:
    client = await server.connect()
    await client.send(*split(request("POST", PATH, KEY, JSON, "expect: 100-continue", "connection: close",
                                     f"content-length: {len(CHAT)}")))  # fmt: skip
    assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(CHAT)
    assert [reply.status for reply in await client.replies()] == [200]


async def test_expect_continue_for_an_unknown_caller(server: RawServer) -> None:
    head = request("POST", PATH, JSON, "expect: 100-continue", f"content-length: {len(CHAT)}")
    assert [reply.status for reply in await server.ask(head, by_line)] == [401]


@every_split
@pytest.mark.parametrize(
    ("target", "status"),
    [
        *[("http://x/v1/models?a=b", 200), ("/v1/%6dodels?c", 200)],
        *[("http://x", 404), ("//x/v1/models", 404), ("*", 404)],
    ],
)
async def test_targets(server: RawServer, split: Split, target: str, status: int) -> None:
    replies = await server.ask(request("GET", target, KEY, "connection: close"), split)
    assert [reply.status for reply in replies] == [status]


@pytest.mark.parametrize("lines", [[], ["connection: keep-alive"]])
async def test_http_1_0(server: RawServer, lines: list[str]) -> None:
    """No chunks, and no second request."""
    body = json.dumps(json.loads(CHAT) | {"stream": True}).encode()
    data = request("POST", PATH, KEY, JSON, *lines, body=body).replace(b"HTTP/1.1", b"HTTP/1.0")
    (reply,) = await server.ask(data + MODELS)
    assert reply.status == 200 and "transfer-encoding" not in reply.headers
    assert reply.body.startswith(b"data: {") and reply.body.endswith(b"data: [DONE]\n\n")


async def test_head_has_no_body(server: RawServer) -> None:
    raw = request("HEAD", "/v1/models", KEY) + request("HEAD", "/none", KEY, "connection: close")
    client = await server.connect()
    await client.send(raw)
    data = await client.reader.read()
    assert data.count(b"HTTP/1.1 ") == 2 and data.endswith(b"\r\n\r\n") and b"{" not in data
