from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.answer import Delta, Generated, Relayed, TokenInfo, ToolCallDelta, Usage
from gateway.response_cache.recording import ends_of, record, recorded_text, replay

DELTAS = [
    Delta(0, reasoning="hm"),
    Delta(0, "Hé", [TokenInfo("Hé", b"H\xc3\xa9", -0.5, [("Hé", b"H\xc3\xa9", -0.5)])]),
    Delta(0, "", tool_calls=[ToolCallDelta(0, '{"a": 1}', "call_1", "f")]),
    Delta(0, "llo", finish_reason="stop"),
]
USAGE = Usage(3, 4, 2, 1)


async def nothing() -> AsyncIterator[Delta]:
    return
    yield


async def test_a_generation_comes_back_as_it_was() -> None:
    answer = Generated(nothing(), USAGE, shows_reasoning=True, offers_tools=True, ignored_fields=["x"])
    again = replay(record(answer, DELTAS))
    assert isinstance(again, Generated)
    assert [delta async for delta in again.deltas] == DELTAS
    assert replace(again, deltas=answer.deltas) == answer
    assert recorded_text(record(answer, DELTAS)) == "Héllo"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_relay_comes_back_as_it_was(is_stream: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b""

    body = pieces() if is_stream else b"{}"
    answer = Relayed(body, USAGE, "text/event-stream", ["stop"], "chatcmpl-1")
    items = [b"data: 1\n\n", b"data: [DONE]\n\n"] if is_stream else [b"{}"]
    again = replay(record(answer, items))
    assert isinstance(again, Relayed)
    assert replace(again, body=body) == answer
    if isinstance(again.body, bytes):
        assert not is_stream and again.body == b"{}"
    else:
        assert is_stream and [piece async for piece in again.body] == items
    assert recorded_text(record(answer, items)) == ""


async def test_two_replays_do_not_share_their_state() -> None:
    recorded = record(Generated(nothing(), USAGE), DELTAS)
    one, other = replay(recorded), replay(recorded)
    one.usage.prompt_tokens = 99
    one.finish_reasons.append("stop")
    assert (other.usage, other.finish_reasons) == (USAGE, [])


@pytest.mark.parametrize(
    ("piece", "end"),
    [
        (b'{"message": {"tool_calls": [{"id": "1"}]}}', "tool_calls"),
        (b'{"delta":{"tool_calls":[ {"index": 0}]}}', "tool_calls"),
        (b'{"message": {"tool_calls": []}}', "stop"),
        (b'{"message": {"tool_calls": null, "content": "tool_calls"}}', "stop"),
    ],
)
def test_a_forced_tool_call_is_one_whatever_its_finish_reason(piece: bytes, end: str) -> None:
    half = len(piece) // 2
    answer = Relayed(b"", Usage(), finish_reasons=["stop"])
    assert ends_of(answer, [piece[:half], piece[half:]]) == [end]
    assert ends_of(Relayed(b"", Usage(), finish_reasons=["length"]), [piece]) == ["length"]
