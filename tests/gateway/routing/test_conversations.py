from __future__ import annotations

import pytest

from gateway.exchange.exchange import Exchange
from gateway.exchange.model_table import ServedModel
from gateway.pipeline.stages.read_request import ReadRequest
from gateway.providers.fake import FakeProvider
from gateway.routing import conversations
from gateway.routing.conversations import Conversations, conversation_of
from gateway.web.deadlines import TimeLimits
from tests.gateway.pipeline.exchanges import exchange_with, routed_to

HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "hello"}
MORE = {"role": "user", "content": "more"}


async def exchange(*messages: dict[str, str]) -> Exchange:
    found = exchange_with({"model": "auto", "messages": list(messages)})
    await ReadRequest().enter(found)
    return found


async def answered(known: Conversations, model: str, *messages: dict[str, str]) -> None:
    found = await exchange(*messages)
    served = ServedModel(model, "engine", FakeProvider(), TimeLimits(None, None, 60))
    found.route(routed_to(served, conversation=conversation_of(found)))
    known.remember(found)


async def test_the_model_of_the_last_answer_is_known() -> None:
    known = Conversations()
    await answered(known, "small", HI)
    assert known.previous_model(await exchange(HI, HELLO, MORE)) == "small"
    assert known.previous_model(await exchange(HI)) == ""
    assert known.previous_model(await exchange(MORE, HELLO, MORE)) == ""


async def test_the_conversation_continued_longest_ago_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 2)
    known = Conversations()
    for model, message in (("a", HI), ("b", MORE), ("c", HI), ("d", {"role": "user", "content": "x"})):
        await answered(known, model, message)
    assert known.previous_model(await exchange(HI, HELLO, MORE)) == "c"
    assert known.previous_model(await exchange(MORE, HELLO, MORE)) == ""
