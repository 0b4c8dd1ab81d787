"""What a server has acknowledged must be there after any kill: objects, files, batches, background work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.bench.chaos.client import Client
from tests.bench.chaos.doors import CHAT, RESPONSES, event_fault
from tests.bench.chaos.outcomes import Wrong, expect
from tests.bench.chaos.traffic import OTHER_KEY

BATCH_LINES = 4
MAX_ITEMS = 20
"""Items of one conversation; then a new one begins."""

Check = Callable[[Client], Awaitable[bool]]


@dataclass(eq=False)
class Promise:
    """One thing that was acknowledged. `check` raises Wrong when it is broken; False: not done yet."""

    kind: str
    path: str
    check: Check
    is_done: bool = False


@dataclass(eq=False)
class _Conversation:
    path: str = ""
    said: list[str] = field(default_factory=list)  # acknowledged, in order
    unsure: set[str] = field(default_factory=set)  # the answer was cut: there at most once


@dataclass(eq=False)
class Stored:
    """What one client has stored."""

    client: Client
    promises: list[Promise] = field(default_factory=list)
    _talk: _Conversation = field(default_factory=_Conversation)

    async def response(self) -> None:
        """A stored response, which is found again as it was."""
        text = self._text()
        body = RESPONSES.body("echo", text, 99, stream=False) | {"store": True}
        answer = await self.client.call("POST", RESPONSES.path, body)
        expect(RESPONSES.whole(answer) == text, answer)
        path = f"{RESPONSES.path}/{answer['id']}"

        async def check(client: Client) -> bool:
            found = await client.call("GET", path)
            expect(RESPONSES.whole(found) == text and found["status"] == "completed", found)
            return True

        self._promise("stored response", path, check)

    async def background(self) -> None:
        """A background response: once acknowledged it is answered, or says why it was not."""
        text = self._text()
        body = RESPONSES.body("echo", text, 99, stream=False) | {"store": True, "background": True}
        answer = await self.client.call("POST", RESPONSES.path, body)
        path = f"{RESPONSES.path}/{answer['id']}"

        async def check(client: Client) -> bool:
            found = await client.call("GET", path)
            if found["status"] in ("queued", "in_progress"):
                return False
            if found["status"] == "completed":
                expect(RESPONSES.whole(found) == text, found)
            else:
                expect(not event_fault(found["error"] or {}) or found["error"].get("code"), found)
            return True

        self._promise("background response", path, check)

    async def file(self) -> None:
        """A file, whose content comes back."""
        content = "\n".join(self._text() for _ in range(20))
        path = f"/v1/files/{await self._upload(content)}/content"

        async def check(client: Client) -> bool:
            found = await client.call("GET", path, raw=True)
            expect(found == content, f"{len(found)} bytes instead of {len(content)}")
            return True

        self._promise("file", path, check)

    async def batch(self) -> None:
        """A batch, each of whose lines is answered once."""
        texts = {f"line-{number}": self._text() for number in range(BATCH_LINES)}
        rows = [
            {
                "custom_id": name,
                "method": "POST",
                "url": CHAT.path,
                "body": CHAT.body("echo", text, 99, stream=False),
            }
            for name, text in texts.items()
        ]
        file = await self._upload("\n".join(json.dumps(row) for row in rows))
        asked = {"input_file_id": file, "endpoint": CHAT.path, "completion_window": "24h"}
        answer = await self.client.call("POST", "/v1/batches", asked)
        path = f"/v1/batches/{answer['id']}"

        async def check(client: Client) -> bool:
            found = await client.call("GET", path)
            if found["status"] in ("validating", "in_progress", "finalizing"):
                return False
            expect(found["status"] == "completed", found)
            await _check_lines(client, found, texts)
            return True

        self._promise("batch", path, check)

    async def conversation(self) -> None:
        """Items of a conversation: what was acknowledged is there once, in order."""
        talk = self._talk
        if not talk.path or len(talk.said) >= MAX_ITEMS:
            self._talk = talk = _Conversation()
            answer = await self.client.call("POST", "/v1/conversations", {})
            talk.path = f"/v1/conversations/{answer['id']}/items"
            self._promise("conversation", talk.path, lambda client: _check_conversation(client, talk))
        text = self._text()
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        talk.unsure.add(text)
        await self.client.call("POST", talk.path, {"items": [item]})
        talk.unsure.discard(text)
        talk.said.append(text)

    async def recheck(self) -> None:
        """Something that was acknowledged before."""
        if self.promises:
            promise = self.client.random.choice(self.promises)
            promise.is_done = await promise.check(self.client)

    async def foreign(self) -> None:
        """Another tenant never finds it."""
        if self.promises:
            path = self.client.random.choice(self.promises).path
            await self.client.call("GET", path, status=404, key=OTHER_KEY)

    def _promise(self, kind: str, path: str, check: Check) -> None:
        self.promises.append(Promise(kind, path, check))

    async def _upload(self, content: str) -> str:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", content.encode(), filename="lines.jsonl")
        return str((await self.client.call("POST", "/v1/files", form))["id"])

    def _text(self) -> str:
        return f"Number {self.client.random.getrandbits(48)} is stored."


async def broken(stored: Stored, limit_s: float) -> list[str]:
    """What is wrong with the promises when all is quiet: each must be kept, and done within `limit_s`."""
    found: list[str] = []
    for promise in stored.promises:
        try:
            async with asyncio.timeout(limit_s):
                while not await promise.check(stored.client):
                    await asyncio.sleep(0.5)
        except TimeoutError:
            found.append(f"{promise.kind} {promise.path} is not done after {limit_s:g} s")
        except Exception as error:  # noqa: BLE001 - whatever it is, the promise is broken
            found.append(f"{promise.kind} {promise.path}: {type(error).__name__} {error}"[:400])
    return found


async def _check_lines(client: Client, batch: dict[str, Any], texts: dict[str, str]) -> None:
    """Each line has one result: its answer, or an error that names itself."""
    results: dict[str, Any] = {}
    for file in (batch["output_file_id"], batch["error_file_id"]):
        content = await client.call("GET", f"/v1/files/{file}/content", raw=True) if file else ""
        for line in map(json.loads, content.splitlines()):
            expect(line["custom_id"] not in results, f"two results for {line['custom_id']}")
            results[line["custom_id"]] = line
    expect(set(results) == set(texts), f"results for {sorted(results)}")
    for name, line in results.items():
        response = line["response"] or {}
        if response.get("status_code") == 200:
            expect(CHAT.whole(response["body"]) == texts[name], line)
        else:
            error = line["error"] or response["body"]["error"]
            expect(not event_fault(error) or error.get("code"), line)


async def _check_conversation(client: Client, talk: _Conversation) -> bool:
    before = list(talk.said)
    page = await client.call("GET", f"{talk.path}?limit=100&order=asc")
    found = [item["content"][0]["text"] for item in page["data"]]
    if len(found) != len(set(found)):
        raise Wrong(f"an item is there twice: {found}")
    known = [text for text in found if text in set(before)]
    expect(known == before, f"{known} instead of {before}")
    expect(set(found) <= {*talk.said, *talk.unsure}, f"{found} has more than was said")
    return True


KINDS: dict[str, tuple[float, Callable[[Stored], Awaitable[None]]]] = {
    "store a response": (2, Stored.response),
    "background response": (2, Stored.background),
    "upload a file": (1, Stored.file),
    "batch": (1, Stored.batch),
    "conversation": (3, Stored.conversation),
    "read what is stored": (5, Stored.recheck),
    "read another tenant's": (1, Stored.foreign),
}
"""Share of the traffic and method of each kind."""
