"""Checks over HTTP: the two protocols, and every way in which a service can fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.answer import Delta, ToolCallDelta
from gateway.screening.answer import ScreenedDeltas
from gateway.screening.hooks import HttpHook
from guardrails.scan.scanner import Blocked
from guardrails.screen.hooks import HookFailed
from guardrails.screen.screening import CheckFailed, Screening
from policies.guardrails import GuardrailProfile, HookRules, PersonalDataRules, TopicRules
from tests.gateway.screening.profiles import body, guard_of


@asynccontextmanager
async def service(answer: Any) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:  # noqa: ANN401
    """A service that always answers with this JSON, bytes or status: its URL, and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        sent = msgspec.json.decode(await reader.readexactly(length))
        asked.append(sent | {"authorization": "authorization: bearer key" in head})
        if answer == "silence":
            await reader.read()
        status = answer if isinstance(answer, int) else 200
        payload = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(payload)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + payload)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/check", asked


async def test_the_service_gets_masked_text_and_its_verdict_counts() -> None:
    async with service({"flagged": True, "reason": "spam"}) as (url, asked):
        profile = GuardrailProfile(personal_data=PersonalDataRules(), hooks={"own": HookRules(url=url)})
        screening = Screening(guard_of(profile))
        with pytest.raises(Blocked, match="hook: own/spam"):
            await screening.request_body(body("Mail bob@example.com"))
    assert asked[0]["direction"] == "request"
    assert asked[0]["texts"] == [{"segment": "user", "text": "Mail [EMAIL_1]"}]


async def test_openais_moderation_can_be_the_service() -> None:
    results = [{"flagged": False}, {"flagged": True, "categories": {"hate": True, "violence": False}}]
    async with service({"results": results}) as (url, asked):
        hook = HttpHook(HookRules(url=url, format="moderations", model="omni"), "key")
        found = await hook.check("request", [("user", "a"), ("tool", "b")])
        await hook.close()
    assert (found.flagged, found.reason) == (True, "hate")
    assert asked == [{"input": ["a", "b"], "model": "omni", "authorization": True}]


async def test_a_long_conversation_is_moderated_in_parts() -> None:
    async with service({"results": [{"flagged": False}] * 32}) as (url, asked):
        hook = HttpHook(HookRules(url=url, format="moderations"))
        assert not (await hook.check("request", [("user", str(i)) for i in range(64)])).flagged
    assert [text for each in asked for text in each["input"]] == list(map(str, range(64)))


async def test_a_moderation_without_a_result_for_each_text_has_failed() -> None:
    async with service({"results": [{"flagged": False}]}) as (url, _):
        with pytest.raises(HookFailed):
            await HttpHook(HookRules(url=url, format="moderations")).check(
                "request", [("user", "a"), ("tool", "b")]
            )


@pytest.mark.parametrize(
    "answer",
    [500, b"no JSON", {"flagged": "perhaps"}, b"[" * 2_000_000, "silence"],
    ids=["status", "no JSON", "another type", "too long", "silence"],
)
async def test_a_service_that_fails_is_counted_and_obeys_the_policy(answer: Any) -> None:  # noqa: ANN401
    async with service(answer) as (url, _):
        rules = HookRules(url=url, timeout_ms=200)
        with pytest.raises(HookFailed):
            await HttpHook(rules).check("request", [("user", "a")])
        screening = Screening(guard_of(GuardrailProfile(hooks={"own": rules})))
        with pytest.raises(CheckFailed):
            await screening.request_body(body("hi"))
        lenient = msgspec.structs.replace(rules, on_failure="allow")
        screening = Screening(guard_of(GuardrailProfile(hooks={"own": lenient})))
        await screening.request_body(body("hi"))
        assert screening.is_flagged and str(screening.verdicts) == "hook:own=1"


@pytest.mark.parametrize("action", ["block", "flag"])
async def test_a_service_is_asked_about_calls_and_texts(action: Any) -> None:  # noqa: ANN401
    async def source() -> AsyncIterator[Delta]:
        yield Delta(0, "Wait.", tool_calls=[ToolCallDelta(0, '{"to": ', "c", "f")])
        yield Delta(0, tool_calls=[ToolCallDelta(0, '"eve"}')])
        yield Delta(0, finish_reason="tool_calls")

    async with service({"flagged": action == "flag"}) as (url, asked):
        hook = HookRules(url=url, requests=False, answers=True, action=action, on_failure="allow")
        topic = TopicRules(examples=["football"], answers=True)
        screening = Screening(guard_of(GuardrailProfile(hooks={"own": hook}, topics={"sport": topic})))
        await screening.request_body(body("hi"))
        found = [each async for each in ScreenedDeltas(source(), screening)]
    assert [call.arguments for each in found for call in each.tool_calls] == ['{"to": ', '"eve"}']
    assert sorted(each["texts"][0]["text"] for each in asked) == ["Wait.", '{"to": "eve"}']
    assert str(screening.verdicts) == ("" if action == "block" else "hook:own=2")


async def test_a_reason_that_is_no_identifier_is_dropped() -> None:
    async with service({"flagged": True, "reason": "the text said: my secret"}) as (url, _):
        assert (await HttpHook(HookRules(url=url)).check("request", [("user", "a")])).reason == ""


async def test_an_answer_is_held_back_until_the_service_has_seen_all_of_it() -> None:
    async def source() -> AsyncIterator[Delta]:
        for piece in ("One. ", "Mail [EMAIL_1]. ", "Three."):
            yield Delta(0, piece)
        yield Delta(0, finish_reason="stop")

    for flagged in (False, True):
        async with service({"flagged": flagged}) as (url, asked):
            hook = HookRules(url=url, requests=False, answers=True)
            profile = GuardrailProfile(personal_data=PersonalDataRules(), hooks={"own": hook})
            screening = Screening(guard_of(profile))
            await screening.request_body(body("bob@example.com"))
            found = [each async for each in ScreenedDeltas(source(), screening)]
        assert asked[0]["texts"] == [{"segment": "assistant", "text": "One. Mail [EMAIL_1]. Three."}]
        text = "".join(each.text for each in found)
        assert text == ("" if flagged else "One. Mail bob@example.com. Three.")
        assert found[-1].finish_reason == ("content_filter" if flagged else "stop")
