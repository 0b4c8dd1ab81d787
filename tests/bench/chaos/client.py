"""One client: sends requests in a closed loop and judges how each ended."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

from tests.bench.chaos.doors import HONEST_STATUSES, Door, error_fault, event_fault
from tests.bench.chaos.outcomes import HonestError, Outcome, Sent, Wrong, expect

REQUEST_LIMIT_S = 60.0
PAUSE_S = 0.25
"""After a request that did not succeed: a client that hammers a dead port measures nothing."""


class Client:
    """Sends to one server, whose processes may be gone at any time."""

    def __init__(
        self, root_url: str, session: aiohttp.ClientSession, key: str, seed: int, pause_s: float = PAUSE_S
    ) -> None:
        self.sent: list[Sent] = []
        self.random = random.Random(seed)
        self._root_url = root_url
        self._session = session
        self._key = key
        self._pause_s = pause_s

    async def judge(self, kind: str, work: Callable[[], Awaitable[None]]) -> Outcome:
        """Do `work`, one request, and record how it ended."""
        started_s = time.perf_counter()
        problem = ""
        outcome: Outcome = "right"
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                await work()
        except HonestError:
            outcome = "error"
        except aiohttp.ClientConnectorError:
            outcome = "refused"
        except (aiohttp.ClientError, ConnectionError):
            outcome = "cut"
        except TimeoutError:
            outcome, problem = "wrong", f"no end within {REQUEST_LIMIT_S:g} s"
        except (Wrong, ValueError, KeyError, IndexError, TypeError) as fault:
            outcome, problem = "wrong", f"{type(fault).__name__}: {fault}"[:400]
        self.sent.append(Sent(kind, started_s, time.perf_counter() - started_s, outcome, problem))
        if outcome != "right":
            await asyncio.sleep(self._pause_s)
        return outcome

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        status: int = 200,
        key: str = "",
        raw: bool = False,
    ) -> Any:  # noqa: ANN401 - whatever the server answers
        """The answer as JSON, or `raw` text; its status must be this one. Raises HonestError or Wrong."""
        sent = {"data": body} if isinstance(body, bytes | aiohttp.FormData) else {"json": body}
        if body is None:
            sent = {}
        url, headers = self._root_url + path, {"authorization": f"Bearer {key or self._key}"}
        async with self._session.request(method, url, headers=headers, **sent) as response:  # type: ignore[arg-type]
            text = await response.text()
            if response.status != status:
                _raise_error(response.status, text, path)
            if status >= 400 and (fault := error_fault(json.loads(text), path)):
                raise Wrong(f"{response.status}: {fault}: {text}")
            return text if raw else json.loads(text)

    async def events(self, path: str, body: object) -> AsyncIterator[str]:
        """The data of each event of a stream, to the end of the response."""
        headers = {"authorization": f"Bearer {self._key}"}
        async with self._session.post(self._root_url + path, json=body, headers=headers) as response:
            if response.status != 200:
                _raise_error(response.status, await response.text(), path)
            async for line in response.content:
                if line.startswith(b"data: "):
                    yield line[6:].strip().decode()

    async def streamed(self, door: Door, body: dict[str, Any], expected: str) -> None:
        """Read a stream. Even one that fails begins as the expected text does."""
        text, ended = "", False
        try:
            async for data in self.events(door.path, body):
                expect(not ended, f"an event after the end: {data}")
                ended = door.is_end(data)
                if data == "[DONE]":
                    continue
                event = json.loads(data)
                if (error := door.error(event)) is not None:
                    expect(not (fault := event_fault(error)), f"{fault}: {data}")
                    raise HonestError
                text += door.delta(event)
        except (HonestError, aiohttp.ClientError, ConnectionError):
            expect(expected.startswith(text), f"{text!r} is not how {expected!r} begins")
            raise
        expect(ended, f"the stream ended silently after {text!r}")
        expect(text == expected, f"{text!r} instead of {expected!r}")


def _raise_error(status: int, text: str, path: str) -> None:
    """Raise HonestError for an error of the moment that names itself, else Wrong."""
    try:
        fault = error_fault(json.loads(text), path)
    except ValueError:
        fault = "it is not JSON"
    if status not in HONEST_STATUSES or fault:
        raise Wrong(f"status {status}: {fault}: {text[:300]}")
    raise HonestError
