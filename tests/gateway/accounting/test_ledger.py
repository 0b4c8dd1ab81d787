"""What calls cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
from msgspec import structs

from gateway.accounting.ledger import Ledger, cost_usd, highest_usd
from gateway.answer import Usage
from gateway.providers.upstream.answer_reader import AnswerReader
from gateway.providers.upstream.anthropic.reader import MessageReader
from gateway.providers.upstream.bedrock.events import AwsEventReader
from gateway.providers.upstream.bedrock.reader import ConverseReader
from gateway.providers.upstream.chat_reader import ChatReader
from gateway.providers.upstream.gemini.reader import CandidateReader
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.sse import EventReader
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from policies.prices import Price
from tests.gateway.providers.upstream.anthropic import calls as anthropic
from tests.gateway.providers.upstream.bedrock import calls as bedrock
from tests.gateway.providers.upstream.gemini import calls as gemini

PRICE = Price(input_usd_per_million_tokens=2.0, output_usd_per_million_tokens=10.0)


def test_cost() -> None:
    assert cost_usd(PRICE, Usage(1_000_000, 200_000)) == pytest.approx(4.0)
    assert cost_usd(None, Usage(1_000_000, 200_000)) == 0.0


def test_cost_beside_tokens() -> None:
    price = structs.replace(PRICE, request_usd=0.5, machine_second_usd=3.0, batch_factor=0.25)
    usage = Usage(1_000_000, 200_000, machine_seconds=2.0)
    assert cost_usd(price, usage) == pytest.approx(4.0 + 0.5 + 6.0)
    assert cost_usd(price, usage, is_batch=True) == pytest.approx(1.0 + 0.5 + 6.0)
    assert cost_usd(price, Usage()) == 0.0  # nothing was asked


def test_tenants_and_models_are_apart() -> None:
    ledger = Ledger()
    ledger.spend("a", "small", 1.0)
    ledger.spend("b", "small", 2.0)
    ledger.spend("b", "large", 4.0)
    assert (ledger.tenant_usd("a"), ledger.tenant_usd("b")) == (1.0, 6.0)
    assert (ledger.model_usd("small"), ledger.models_usd(["small", "large", "none"])) == (3.0, 7.0)


OPENAI = {"choices": [{"index": 0, "message": {"content": "é"}, "finish_reason": "stop"}]}


def read_openai(usage: dict[str, object], *, is_streamed: bool) -> Usage:
    fields = {"model": "m", "messages": [{"role": "user", "content": "é"}]}
    reader = AnswerReader("m", Redactor(), typed(fields, ChatRequest), 1, 0)
    if not is_streamed:
        reader.read_whole(json.dumps({**OPENAI, "usage": usage}).encode())
        return reader.usage
    delta = {"choices": [{"index": 0, "delta": {"content": "é"}, "finish_reason": "stop"}]}
    for chunk in (delta, {"choices": [], "usage": usage}, {"choices": [], "usage": usage}):  # some repeat it
        reader.take(json.dumps(chunk).encode())
    reader.settle(is_complete=True)
    return reader.usage


def read_other(reader: ChatReader, events: EventReader | AwsEventReader, whole: object, raw: bytes) -> Usage:
    """A whole answer, or, where there is none, a stream."""
    if whole is not None:
        reader.take_whole(json.dumps(whole).encode())
        return reader.usage
    for event in [*events.feed(raw), *events.close()]:
        reader.take(event)
    return reader.usage


def read_anthropic(*, is_streamed: bool) -> Usage:
    reader = MessageReader("m", Redactor())
    return read_other(reader, EventReader(), None if is_streamed else anthropic.MESSAGE, anthropic.EVENTS)


def read_gemini(*, is_streamed: bool) -> Usage:
    reader = CandidateReader("m", Redactor(), 1)
    return read_other(reader, EventReader(), None if is_streamed else gemini.ANSWER, gemini.EVENTS)


def read_bedrock(*, is_streamed: bool) -> Usage:
    reader = ConverseReader("m", Redactor())
    return read_other(reader, AwsEventReader(), None if is_streamed else bedrock.ANSWER, bedrock.EVENTS)


def openai_says(**usage: object) -> Callable[..., Usage]:
    return partial(read_openai, {"prompt_tokens": 22, "completion_tokens": 9, **usage})


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("read", "cached", "written", "thought"),
    [
        (openai_says(), 0, 0, 0),
        (
            openai_says(
                prompt_tokens_details={"cached_tokens": 16},
                completion_tokens_details={"reasoning_tokens": 3},
                total_tokens=31,
            ),
            *(16, 0, 3),
        ),
        (openai_says(prompt_tokens_details={"cached_tokens": 16, "cache_write_tokens": 2}), 16, 2, 0),
        (openai_says(prompt_tokens_details={"cached_tokens": None, "cache_creation_tokens": 2}), 0, 2, 0),
        (openai_says(prompt_cache_hit_tokens=16, prompt_cache_miss_tokens=6), 16, 0, 0),  # DeepSeek
        (openai_says(prompt_tokens_details={"cached_tokens": 16}, prompt_cache_hit_tokens=16), 16, 0, 0),
        (
            openai_says(
                completion_tokens=6, completion_tokens_details={"reasoning_tokens": 3}, total_tokens=31
            ),
            *(0, 0, 3),
        ),  # xAI
        (read_anthropic, 16, 2, 3),
        (read_gemini, 16, 0, 3),
        (read_bedrock, 16, 2, 0),
    ],
)
def test_each_token_is_paid_once_whatever_the_api_reports(
    read: Callable[..., Usage], cached: int, written: int, thought: int, *, is_streamed: bool
) -> None:
    """All of them report 22 tokens that were read and 9 that were written, in their way."""
    usage = read(is_streamed=is_streamed)
    assert (usage.prompt_tokens, usage.completion_tokens) == (22, 9)
    assert (usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (
        cached,
        written,
        thought,
    )
    price = Price(
        input_usd_per_million_tokens=4e6,
        output_usd_per_million_tokens=10e6,
        cached_input_usd_per_million_tokens=1e6,
        cache_write_usd_per_million_tokens=5e6,
        reasoning_usd_per_million_tokens=20e6,
    )
    expected = (22 - cached - written) * 4 + cached + written * 5 + (9 - thought) * 10 + thought * 20
    assert cost_usd(price, usage) == pytest.approx(expected)
    assert cost_usd(price, usage) <= highest_usd(price, usage)
