"""The provider over a socket: requests equal to AWS's client's and rightly signed, answers, errors."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from typing import Any

import pytest
from botocore.config import Config
from botocore.session import Session

from gateway.errors import ApiError
from gateway.requests.reasoning_details import details
from tests.gateway.providers.upstream.anthropic.calls import collected, deltas, shown
from tests.gateway.providers.upstream.bedrock.calls import ANSWER, CLAUDE, EVENTS, EXPECTED, call, provider
from tests.gateway.providers.upstream.bedrock.events_reply import stream_reply
from tests.gateway.providers.upstream.scripted_server import Seen, always, response, serving

pytestmark = pytest.mark.usefixtures("transport", "no_secret_in_the_log", "aws_environment")

SECRET = "canary-secret"
REPLY = response(json.dumps(ANSWER).encode())
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALL = {"id": "tool_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL_LOOP: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_details": details([("hm", "signed"), ("", "redacted:bedrock:YWJj")]),
        "tool_calls": [CALL],
    },
    {"role": "tool", "tool_call_id": "tool_1", "content": "2"},
]
SDK_LOOP = [
    {
        "role": "user",
        "content": [{"text": "What?"}, {"image": {"format": "png", "source": {"bytes": b"\0\0\0"}}}],
    },
    {
        "role": "assistant",
        "content": [
            {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "signed"}}},
            {"reasoningContent": {"redactedContent": b"abc"}},
            {"toolUse": {"toolUseId": "tool_1", "name": "add", "input": {"a": 1}}},
        ],
    },
    {"role": "user", "content": [{"toolResult": {"toolUseId": "tool_1", "content": [{"text": "2"}]}}]},
]
TEXT = [{"role": "user", "content": [{"text": "é"}]}]
SDK_TOOL = {"toolSpec": {"name": "add", "description": "Adds.", "inputSchema": {"json": SCHEMA}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": ({}, {"messages": TEXT}),
    "sampling": (
        {"temperature": 0, "top_p": 0.5, "top_k": 3, "stop": "END", "max_tokens": 5},
        {
            "messages": TEXT,
            "inferenceConfig": {"temperature": 0, "topP": 0.5, "stopSequences": ["END"], "maxTokens": 5},
            "additionalModelRequestFields": {"top_k": 3},
        },
    ),
    "tool loop with thinking": (
        {"messages": TOOL_LOOP, "tools": [TOOL], "reasoning_effort": "low"},
        {
            "system": [{"text": "Be brief."}],
            "messages": SDK_LOOP,
            "toolConfig": {"tools": [SDK_TOOL]},
            "additionalModelRequestFields": {
                "thinking": {"type": "adaptive"},
                "output_config": {"effort": "low"},
            },
        },
    ),
    "required tool": (
        {"tools": [TOOL], "tool_choice": "required"},
        {"messages": TEXT, "toolConfig": {"tools": [SDK_TOOL], "toolChoice": {"tool": {"name": "add"}}}},
    ),
    "schema": (
        {"response_format": FORMAT},
        {
            "messages": TEXT,
            "outputConfig": {
                "textFormat": {
                    "type": "json_schema",
                    "structure": {
                        "jsonSchema": {"name": "n", "schema": json.dumps(SCHEMA, separators=(",", ":"))}
                    },
                }
            },
        },
    ),
}


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("chat", "sdk"), CASES.values(), ids=CASES.keys())
async def test_requests_equal_aws_clients(chat: dict[str, Any], sdk: dict[str, Any], stream: bool) -> None:
    script = stream_reply(EVENTS) if stream else always(REPLY)
    async with serving(script) as server, provider(server) as ours:
        await deltas(await ours.chat(call(stream=stream, **chat)))
        await asyncio.to_thread(ask_with_botocore, server.base_url.removesuffix("/v1"), sdk, stream=stream)
        first, second = server.seen
    assert json.loads(first.body) == json.loads(second.body)
    assert first.head == second.head
    assert signed_names(first) == signed_names(second)
    assert signature(first) == expected_signature(first) and signature(second) == expected_signature(second)
    assert first.headers["x-request-id"] == "req_1" and first.headers["traceparent"] == "00-a-b-01"


def ask_with_botocore(url: str, sdk: dict[str, Any], *, stream: bool) -> None:
    client = Session().create_client(
        "bedrock-runtime", endpoint_url=url, config=Config(retries={"total_max_attempts": 1})
    )
    try:
        if stream:
            found = list(client.converse_stream(modelId=CLAUDE, **sdk)["stream"])
            assert [next(iter(each)) for each in found][-2:] == ["messageStop", "metadata"]
        else:
            assert client.converse(modelId=CLAUDE, **sdk)["stopReason"] == "tool_use"
    finally:
        client.close()


def signed_names(seen: Seen) -> list[str]:
    return seen.headers["authorization"].partition("signedheaders=")[2].partition(",")[0].split(";")


def signature(seen: Seen) -> str:
    return seen.headers["authorization"].rpartition("signature=")[2]


def expected_signature(seen: Seen) -> str:
    """Signature Version 4 of the request as it came, written from the specification."""
    method, path, _ = seen.head.split()
    names = signed_names(seen)
    # The server's test double has lowered the values; the only one that is case-sensitive is the date.
    values = {**seen.headers, "x-amz-date": seen.headers["x-amz-date"].upper()}
    headers = "".join(f"{name}:{values[name]}\n" for name in names)
    canonical_path = path.replace("%", "%25")
    body = hashlib.sha256(seen.body).hexdigest()
    request = "\n".join([method, canonical_path, "", headers, ";".join(names), body])
    date = values["x-amz-date"]
    scope = f"{date[:8]}/eu-west-1/bedrock/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()


async def test_whole_and_streamed_answers() -> None:
    async with serving(always(REPLY)) as server, provider(server) as ours:
        whole = await ours.chat(call())
        assert shown(collected(await deltas(whole))) == EXPECTED
        assert (whole.usage.prompt_tokens, whole.usage.cached_tokens) == (22, 16)
    pieces = [EVENTS[i : i + 50] for i in range(0, len(EVENTS), 50)]
    async with serving(stream_reply(*pieces)) as server, provider(server) as ours:
        answer = await ours.chat(call(stream=True, reasoning_effort="low"))
        assert answer.shows_reasoning
        assert shown(collected(await deltas(answer))) == EXPECTED


async def test_a_stream_that_is_cut_or_damaged_is_an_error() -> None:
    damaged = EVENTS[:-40] + b"x" + EVENTS[-39:]
    for raw, code in [(EVENTS[:-40], "upstream_invalid_response"), (damaged, "upstream_connection_broken")]:
        async with serving(stream_reply(raw)) as server, provider(server) as ours:
            with pytest.raises(ApiError) as caught:
                await deltas(await ours.chat(call(stream=True)))
        assert caught.value.code == code


async def test_closing_before_the_end_drops_the_connection() -> None:
    async with serving(stream_reply(EVENTS[:-40], end=b"")) as server, provider(server) as ours:
        answer = await ours.chat(call(stream=True))
        await anext(answer.deltas)
        await answer.deltas.aclose()  # type: ignore[attr-defined]
        assert await server.closed.get() == 1


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "ValidationException", 400),
        (404, "ResourceNotFoundException", 404),
        (424, "ModelErrorException", 502),
        (429, "ThrottlingException", 429),
        (503, "ServiceUnavailableException", 503),
    ],
)
async def test_errors_keep_status_code_and_request_id(status: int, kind: str, expected: int) -> None:
    headers = {"x-amzn-errortype": f"{kind}:http://internal", "x-amzn-requestid": "theirs"}
    reply = response(b'{"message": "Because."}', status, **headers)
    async with serving(always(reply)) as server, provider(server) as ours:
        with pytest.raises(ApiError) as caught:
            await ours.chat(call())
    found = caught.value
    assert (found.status, found.code.lower(), found.message) == (expected, kind.lower(), "Because.")
    assert found.headers == {"x-upstream-request-id": "theirs"}


async def test_an_api_key_needs_no_signature() -> None:
    async with serving(always(REPLY)) as server, provider(server, api_key="canary-key") as ours:
        await ours.chat(call())
        assert server.seen[0].headers["authorization"] == "bearer canary-key"


async def test_the_policy_asks_for_prompt_caching() -> None:
    async with serving(always(REPLY)) as server, provider(server, prompt_caching=True) as ours:
        await ours.chat(call())
        blocks = json.loads(server.seen[0].body)["messages"][-1]["content"]
    assert blocks == [{"text": "é"}, {"cachePoint": {"type": "default"}}]
