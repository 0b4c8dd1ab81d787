"""What the clients of a soak do: a seeded random mix of requests, each with the outcome that it must have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.bench.targets import Target

REQUEST_LIMIT_S = 60.0
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True)
class Sent:
    """One request of the soak; `problem` is empty when its outcome was the expected one."""

    kind: str
    started_s: float
    first_byte_s: float
    total_s: float
    problem: str


class Unexpected(Exception):
    """A request had another outcome than it must have."""


class Client:
    """Sends requests of all kinds to one server and records them."""

    def __init__(self, target: Target, session: aiohttp.ClientSession, seed: int) -> None:
        self.sent: list[Sent] = []
        self._target = target
        self._headers = {"authorization": f"Bearer {target.key}"}
        self._session = session
        self._random = random.Random(seed)
        self._first_byte_s = 0.0

    async def run(self, until_s: float) -> None:
        """Send one request after the other until `time.perf_counter()` is `until_s`."""
        names, weights = zip(*((name, weight) for name, (weight, _) in KINDS.items()), strict=True)
        while time.perf_counter() < until_s:
            await self._one(self._random.choices(names, weights)[0])

    async def _one(self, kind: str) -> None:
        started_s = self._first_byte_s = time.perf_counter()
        problem = ""
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                await KINDS[kind][1](self)
        except (Unexpected, TimeoutError, OSError, aiohttp.ClientError) as error:
            problem = f"{kind}: {type(error).__name__} {error}"[:300]
        now_s = time.perf_counter()
        self.sent.append(Sent(kind, started_s, self._first_byte_s - started_s, now_s - started_s, problem))

    def _chat(self, model: str, **fields: object) -> dict[str, Any]:
        draw = self._random
        question = f"What is {draw.randint(2, 999)} plus {draw.randint(2, 999)}?"
        messages = [{"role": "user", "content": question}]
        return {"model": model, "messages": messages, "max_tokens": draw.randint(8, 32), **fields}

    async def _post(self, body: object, status: int = 200, path: str = "/chat/completions") -> dict[str, Any]:
        async with self._session.post(self._target.url + path, json=body, headers=self._headers) as response:
            self._first_byte_s = time.perf_counter()
            answer: dict[str, Any] = await response.json()
            if response.status != status:
                raise Unexpected(f"{response.status} instead of {status}: {answer}")
            return answer

    async def _stream(self, body: dict[str, Any], stop_after: int | None = None) -> str:
        """Read a stream; disconnect after `stop_after` events. Returns the data of the last event."""
        last, events = "", 0
        url = self._target.url + "/chat/completions"
        async with self._session.post(url, json=body, headers=self._headers) as response:
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                if not events:
                    self._first_byte_s = time.perf_counter()
                last, events = line[6:].decode().strip(), events + 1
                if events == stop_after:
                    response.close()
                    break
        return last

    async def stream(self) -> None:
        """A streamed answer of the engine, to its end."""
        last = await self._stream(self._chat("pico-small", stream=True))
        expect(last == "[DONE]", last)

    async def whole(self) -> None:
        """An answer in one piece."""
        answer = await self._post(self._chat("pico-small", temperature=0.8, logprobs=True, top_logprobs=2))
        expect(answer["choices"][0]["finish_reason"] in ("stop", "length"), answer)

    async def tools(self) -> None:
        """A forced tool call."""
        choice = {"type": "function", "function": {"name": "get_weather"}}
        body = self._chat("pico-small", tools=[WEATHER_TOOL], tool_choice=choice) | {"max_tokens": 48}
        answer = await self._post(body)
        expect(answer["choices"][0]["message"]["tool_calls"], answer)

    async def grammar(self) -> None:
        """An answer by a JSON schema that no earlier request had."""
        name = f"field_{self._random.randrange(10**9)}"
        schema = {
            "type": "object",
            "properties": {name: {"type": "integer"}},
            "required": [name],
            "additionalProperties": False,
        }
        response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        await self._post(self._chat("pico-small", response_format=response_format))

    async def adapter(self) -> None:
        """A streamed answer with one of three adapters."""
        adapter = self._random.choice(("json", "si", "german"))
        last = await self._stream(self._chat(f"pico-small:{adapter}", stream=True))
        expect(last == "[DONE]", last)

    async def embeddings(self) -> None:
        """Two sentence vectors."""
        body = {"model": "all-minilm-l6-v2", "input": ["A sentence.", f"Number {self._random.random()}."]}
        answer = await self._post(body, path="/embeddings")
        expect(len(answer["data"]) == 2, answer)

    async def disconnect(self) -> None:
        """A client that goes away after a few events."""
        body = self._chat("pico-small", stream=True) | {"max_tokens": 200, "ignore_eos": True}
        await self._stream(body, stop_after=self._random.randint(1, 8))

    async def slow_reader(self) -> None:
        """A client that reads 1 KiB every 20 ms of a stream that comes as fast as it can, then gives up."""
        address = self._target.url.split("/")[2].split(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        with contextlib.closing(connection):
            await loop.sock_connect(connection, (address[0], int(address[1])))
            body = json.dumps(self._chat("flood", stream=True)).encode()
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address[0]}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"authorization: Bearer {self._target.key}\r\n\r\n"
            )
            await loop.sock_sendall(connection, head.encode() + body)
            for _ in range(self._random.randint(10, 100)):
                expect(await loop.sock_recv(connection, 1024), "the stream ended early")
                await asyncio.sleep(0.02)

    async def bad_request(self) -> None:
        """Errors of the client's making."""
        draw = self._random
        body, status = draw.choice(
            (
                (self._chat("pico-small", temperature=99), 400),
                (self._chat("pico-small", guided_regex="(unclosed"), 400),
                (self._chat("pico-small", **{f"unknown_{draw.random()}": 1}), 400),
                (self._chat(f"no-such-model-{draw.random()}"), 404),
                (self._chat("pico-small") | {"messages": [{"role": "user", "content": "word " * 9000}]}, 400),
            )
        )
        await self._post(body, status)

    async def upstream(self) -> None:
        """A healthy provider, streamed or not."""
        if self._random.random() < 0.5:
            await self._post(self._chat("ok"))
        else:
            last = await self._stream(self._chat("ok", stream=True))
            expect(last == "[DONE]", last)

    async def upstream_fault(self) -> None:
        """A provider that fails: an error status, or nonsense."""
        fault, status = self._random.choice((("error", 500), ("garbage", 502)))
        await self._post(self._chat(fault), status)

    async def upstream_stall(self) -> None:
        """A provider that says nothing, until the limit on the first token."""
        await self._post(self._chat("stall", stream=True), 504)

    async def upstream_cut(self) -> None:
        """A provider that cuts its stream: the client gets an error event, never a clean end."""
        last = await self._stream(self._chat("cut", stream=True))
        expect('"error"' in last, last)


def expect(holds: object, found: object) -> None:
    """Raise Unexpected with what was found unless `holds`."""
    if not holds:
        raise Unexpected(str(found))


KINDS: dict[str, tuple[float, Callable[[Client], Awaitable[None]]]] = {
    "stream": (6, Client.stream),
    "whole": (3, Client.whole),
    "tools": (2, Client.tools),
    "grammar": (2, Client.grammar),
    "adapter": (3, Client.adapter),
    "embeddings": (3, Client.embeddings),
    "disconnect": (2, Client.disconnect),
    "slow_reader": (1, Client.slow_reader),
    "bad_request": (3, Client.bad_request),
    "upstream": (4, Client.upstream),
    "upstream_fault": (1, Client.upstream_fault),
    "upstream_stall": (1, Client.upstream_stall),
    "upstream_cut": (1, Client.upstream_cut),
}
"""Share of the traffic and method of each kind."""
