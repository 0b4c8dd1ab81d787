"""Processor time of translating requests and answers between the APIs, without any server."""

from __future__ import annotations

import argparse
import asyncio
import json
import timeit
from collections.abc import AsyncIterator, Callable
from time import process_time
from typing import Any

from gateway.answer import Delta, Relayed, Usage
from gateway.anthropic.request import read_messages_request
from gateway.anthropic.shape import MessageShape
from gateway.exchange.shape import Shape, encode
from gateway.openai.chat import ChatShape
from gateway.openai.responses.input_items import chat_messages, read_items
from gateway.openai.responses.request import read_request
from gateway.openai.responses.shape import ResponseShape
from gateway.providers.upstream.anthropic.reader import MessageReader
from gateway.providers.upstream.anthropic.request import messages_body
from gateway.providers.upstream.bedrock.events import AwsEventReader
from gateway.providers.upstream.bedrock.reader import ConverseReader
from gateway.providers.upstream.bedrock.request import converse_body
from gateway.providers.upstream.chat_reader import ChatReader
from gateway.providers.upstream.gemini.reader import CandidateReader
from gateway.providers.upstream.gemini.request import generate_body
from gateway.providers.upstream.generated import generated
from gateway.providers.upstream.redaction import Redactor
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest
from tests.bench import report
from tests.gateway.providers.upstream.bedrock.aws_events import event

NUM_DELTAS = 1000
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ITEMS: list[Any] = [
    {"role": "user", "content": "What is the weather in Paris, and in Rome?"},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny, 21 degrees"},
]
TOOLS = [{"type": "function", "name": "weather", "description": "Looks it up.", "parameters": SCHEMA}]
RESPONSE = {"model": "m", "input": ITEMS, "instructions": "Be brief.", "tools": TOOLS, "stream": True}
MESSAGES = {
    "model": "m",
    "max_tokens": 1000,
    "system": [{"type": "text", "text": "Be brief."}],
    "stream": True,
    "tools": [{"name": "weather", "description": "Looks it up.", "input_schema": SCHEMA}],
    "messages": [
        {"role": "user", "content": "What is the weather in Paris, and in Rome?"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "sunny, 21 degrees"}],
        },
    ],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench translation`."""
    parser.add_argument("--repeats", type=int, default=7, help="the best of this many runs is reported")
    parser.add_argument("--number", type=int, default=500, help="requests per run")


def run(arguments: argparse.Namespace) -> None:
    """Measure and print, in one process."""
    rows = [
        {"case": name, "microseconds": round(_best(work, arguments.number, arguments.repeats), 1)}
        for name, work in _requests().items()
    ]
    report.show("translation · one request", rows, arguments.json)
    rows = [
        {"case": name, "microseconds": round(_best(work, 1, arguments.repeats) / NUM_DELTAS, 2)}
        for name, work in _deltas().items()
    ]
    report.show(f"translation · one delta of {NUM_DELTAS}", rows, arguments.json)


def _best(work: Callable[[], object], number: int, repeats: int) -> float:
    return min(timeit.repeat(work, timer=process_time, number=number, repeat=repeats)) / number * 1e6


def _requests() -> dict[str, Callable[[], object]]:
    body = read_messages_request(MESSAGES)[0]
    chat = typed(body, ChatRequest)

    def response() -> object:
        read = read_request(RESPONSE)
        return {**read.chat, "messages": chat_messages(read_items(read.request.input))}

    return {
        "/v1/messages -> chat": lambda: read_messages_request(MESSAGES),
        "/v1/responses -> chat": response,
        "chat -> Anthropic's API": lambda: encode(messages_body(chat, body, "m", 1000)[0]),
        "chat -> Gemini's API": lambda: encode(generate_body(chat, body, "m")[0]),
        "chat -> Bedrock's API": lambda: encode(converse_body(chat, body, "anthropic.m")[0]),
    }


def _deltas() -> dict[str, Callable[[], object]]:
    read = read_request(RESPONSE)
    chat = typed({"model": "m", "messages": [{"role": "user", "content": "x"}]}, ChatRequest)
    shapes: dict[str, Callable[[], Shape]] = {
        "chat": lambda: ChatShape(chat, "m", None),
        "/v1/messages": lambda: MessageShape("m", Usage(), shows_thinking=True),
        "/v1/responses": lambda: ResponseShape(read, "m", shows_reasoning=True),
    }
    cases: dict[str, Callable[[], object]] = {
        f"delta -> {name}": lambda make=make: _shaped(make())  # type: ignore[misc]
        for name, make in shapes.items()
    }
    cases["OpenAI's API -> delta"] = lambda: asyncio.run(_generated())
    chats = {
        "Anthropic's": lambda: _read(MessageReader("m", Redactor()), EVENT),
        "Gemini's": lambda: _read(CandidateReader("m", Redactor(), 1), GEMINI_EVENT),
        "Bedrock's": lambda: _read(ConverseReader("m", Redactor()), BEDROCK_EVENT),
    }
    cases |= {f"{api} API -> delta": read for api, read in chats.items()}
    cases["AWS event stream -> event"] = _split
    return cases


def _shaped(shape: Shape) -> None:
    shape.opening()
    for _ in range(NUM_DELTAS):
        shape.chunk(Delta(0, " word"))


CHUNK = {"id": "x", "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}]}
PIECE = b"data: %s\n\n" % json.dumps(CHUNK).encode()
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
GEMINI_EVENT = (
    b'{"candidates":[{"content":{"parts":[{"text":" word"}],"role":"model"},"index":0}],'
    b'"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":3,"totalTokenCount":8},"modelVersion":"m"}'
)
BEDROCK_EVENT = b'{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":" word"},"p":"abcdefghijkl"}}'
AWS_EVENT = event("contentBlockDelta", contentBlockIndex=0, delta={"text": " word"})
EVENT = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}'


async def _generated() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(NUM_DELTAS):
            yield PIECE
        yield LAST

    async for _ in generated(Relayed(pieces(), Usage())).deltas:
        pass


def _read(reader: ChatReader, event: bytes) -> None:
    for _ in range(NUM_DELTAS):
        reader.read(event)
        reader.deltas.clear()


def _split() -> None:
    events = AwsEventReader()
    for _ in range(NUM_DELTAS):
        events.feed(AWS_EVENT)
