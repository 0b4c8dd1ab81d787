"""`truncation: auto`: the oldest turns go until the context has room; instructions and the last turn stay."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer import Generated
from gateway.errors import InvalidRequest
from gateway.providers.base import ModelCall
from gateway.providers.fake import FakeProvider
from gateway.requests.types import ChatRequest
from gateway.routing.truncation import without_turns
from tests.gateway.conftest import MakeApp, http_client

MESSAGES = st.lists(
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]).map(lambda role: {"role": role})
)


@given(messages=MESSAGES, num_turns=st.integers(1, 9))
def test_the_end_and_the_instructions_stay(messages: list[dict[str, Any]], num_turns: int) -> None:
    left = without_turns(messages, num_turns)
    num_users = sum(message["role"] == "user" for message in messages)
    if num_users < 2:
        assert left is None
        return
    assert left is not None and len(left) < len(messages)
    dropped = [message for message in messages if not any(message is kept for kept in left)]
    assert not {"system", "developer"} & {message["role"] for message in dropped}
    assert sum(message["role"] == "user" for message in dropped) == min(num_turns, num_users - 1)
    assert left == [message for message in messages if any(message is kept for kept in left)]


class Narrow(FakeProvider):
    """Has room for a few messages."""

    max_messages = 4

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated:
        if len(call.body["messages"]) > self.max_messages:
            raise InvalidRequest("Too long.", code="context_length_exceeded")
        return await super().chat(call)


ITEMS = [{"role": role, "content": f"{role} {turn}"} for turn in range(9) for role in ("user", "assistant")]
BODY = {"model": "ours", "instructions": "I", "input": [*ITEMS, {"role": "user", "content": "last"}]}


async def post(make_app: MakeApp, provider: FakeProvider, **more: object) -> httpx.Response:
    async with http_client(make_app(provider)) as http:
        return await http.post("/v1/responses", json=BODY | more)


async def test_a_response_goes_on_without_its_oldest_turns(make_app: MakeApp) -> None:
    provider = Narrow()
    response = await post(make_app, provider, truncation="auto")
    assert response.status_code == 200 and response.json()["truncation"] == "auto"
    (call,) = provider.asked
    assert [message["content"] for message in call.body["messages"]] == ["I", "last"]  # 1 + 2 + 4 + 2 turns
    assert call.request.messages == call.body["messages"]  # type: ignore[union-attr]


@pytest.mark.parametrize("fields", [{}, {"truncation": "disabled"}, {"truncation": "auto", "input": "x"}])
async def test_otherwise_it_is_refused(make_app: MakeApp, fields: dict[str, object]) -> None:
    provider = Narrow()
    provider.max_messages = 1
    response = await post(make_app, provider, **fields)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
