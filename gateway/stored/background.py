"""Responses that are generated in the background, each by a request of the gateway to itself.

Other workers know of one by its lease in the store, which is renewed: a response whose lease has run out has
lost its process, and one whose lease was taken away is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from starlette.types import ASGIApp

from gateway.auth import InternalCaller
from gateway.batches.in_process import not_started, post
from gateway.errors import (
    ApiError,
    NotFound,
    RateLimited,
    ServerError,
    Unavailable,
    retry_after,
    to_api_error,
)
from gateway.exchange.shape import encode
from gateway.openai.responses.shape import ResponseShape
from gateway.stored.object_rows import Named
from gateway.stored.object_store import ObjectStore, StoredObject
from gateway.web.asgi_endpoint import log_failure
from gateway.web.http_call import HttpCall

RESPONSE_ID = "penstock.response_id"
"""Key in a scope of the id that a response in the background has been given; clients cannot set it."""
LEASE_S = 30.0
RENEW_S = 1.0
"""Also how soon a worker sees that another one has cancelled its response."""
MAX_RUNS = 1024
"""Background runs of one worker."""
MAX_TENANT_BYTES = 64 << 20
"""Bytes of the bodies of one tenant's runs, which stay in memory."""
MAX_FOLLOWED = 256
"""Streams of one tenant that follow responses at the same time."""
RETRY_S = 5.0
"""`retry-after` of who has reached one of these."""
_NOT_PASSED_ON = (b"authorization", b"x-api-key", b"content-length", b"content-type", b"transfer-encoding")


@dataclass(slots=True)
class Run:
    """One response that this worker generates."""

    shape: ResponseShape  # of the response as it was when it began
    tenant: str
    store: ObjectStore
    keeps_events: bool  # for a client that comes back
    body: bytes = b""  # of the request
    keep: Sequence[Named] = ()  # the stored objects that the request names
    leave: Callable[[], None] = lambda: None  # called once: it counts in the tenant's limits no more
    key_id: str = ""  # of the key that has asked
    events: list[bytes] = field(default_factory=list)  # each at its sequence_number
    is_cancelled: bool = False
    is_done: bool = False
    _rest: bytes = b""
    _num_opening: int = 0  # events
    _num_fed: int = 0  # events of the request's own stream
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Begin the stream: who reads it learns the id long before a model's first token."""
        self.events = [event + b"\n\n" for event in self.shape.opening().split(b"\n\n")[:-1]]
        self._num_opening = len(self.events)

    def feed(self, piece: bytes) -> None:
        """Bytes of the request's stream; its opening stands here already."""
        if not self.is_cancelled:
            *events, self._rest = (self._rest + piece).split(b"\n\n")
            new = max(0, self._num_opening - self._num_fed)
            self._num_fed += len(events)
            self.events += [event + b"\n\n" for event in events[new:]]
            self._changed.set()

    def fail(self, error: ApiError) -> None:
        """End the run with this error, unless its stream says so."""
        self._rest = b""
        if len(self.events) == self._num_opening and not self.is_cancelled:
            self.events.append(self.shape.failed(error))

    def end(self) -> None:
        """There are no more events."""
        self.is_done = True
        self._changed.set()

    async def follow(self, start: int) -> AsyncIterator[bytes]:
        """The events from this sequence number on, until the response has ended."""
        while True:
            self._changed.clear()
            if len(self.events) > start:
                yield b"".join(self.events[start:])
                start = len(self.events)
            elif self.is_done:
                return
            else:
                await self._changed.wait()


class BackgroundResponses:
    """The background responses of one worker."""

    def __init__(self) -> None:
        self.app: ASGIApp = not_started  # answers the requests; set before the first
        self.runs: dict[str, Run] = {}  # by the response's id
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._followed: Counter[str] = Counter()  # by tenant

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Stop. What is not complete has failed."""
        tasks = [*self._tasks.values(), *([self._renewing] if self._renewing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def begin(self, call: HttpCall, run: Run, items: list[dict[str, Any]]) -> None:
        """Store the response and start it. Raises RateLimited or Unavailable."""
        self._check_share(run)
        response_id, store = run.shape.response_id, run.store
        self.runs[response_id] = run  # before others may begin
        try:
            until_s = store.now_s() + LEASE_S
            if run.keeps_events:
                await store.put("events", response_id, run.tenant, StoredObject(b"", until_s), keep=run.keep)
            stored = StoredObject(encode(run.shape.response), until_s)
            await store.put("response", response_id, run.tenant, stored, items, run.keep)
        except BaseException:
            del self.runs[response_id]
            raise
        headers = [(name, value) for name, value in call.scope["headers"] if name not in _NOT_PASSED_ON]
        self._tasks[response_id] = asyncio.create_task(self._run(run, headers))
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    def _check_share(self, run: Run) -> None:
        own = [each for each in self.runs.values() if each.tenant == run.tenant]
        if len(own) >= run.store.policy.max_background_per_tenant:
            raise _limited(
                f"You have {len(own)} responses in the background at this worker, which is the limit"
            )
        if sum(len(each.body) for each in own) + len(run.body) > MAX_TENANT_BYTES and own:
            raise _limited(f"The bodies of your responses in the background have {MAX_TENANT_BYTES} bytes")
        if len(self.runs) >= MAX_RUNS:
            raise _limited(f"{MAX_RUNS} responses are generated in the background")

    @contextlib.contextmanager
    def following(self, tenant: str) -> Iterator[None]:
        """While a client follows a response's events. Raises RateLimited."""
        if self._followed[tenant] >= MAX_FOLLOWED:
            raise _limited(f"You follow {MAX_FOLLOWED} responses at this worker, which is the limit")
        self._followed[tenant] += 1
        try:
            yield
        finally:
            self._followed[tenant] -= 1
            if not self._followed[tenant]:
                del self._followed[tenant]

    def cancel(self, response_id: str) -> None:
        """Stop it now, if this worker generates it; the store says already that it is cancelled."""
        run, task = self.runs.get(response_id), self._tasks.get(response_id)
        if run is not None and task is not None:
            run.is_cancelled = True
            task.cancel()

    async def _run(self, run: Run, headers: list[tuple[bytes, bytes]]) -> None:
        response_id = run.shape.response_id
        try:
            await self._ask(run, headers)
        except asyncio.CancelledError:
            run.fail(Unavailable("The gateway was stopped before the response was complete."))
        except Exception as failure:  # noqa: BLE001 - it has failed, whatever the reason
            log_failure(failure, f"of {response_id}")
            run.fail(to_api_error(failure))
        finally:
            run.leave()
            with contextlib.suppress(NotFound, Unavailable):  # it was deleted, or its lease runs out
                await _settle(run)
            run.end()
            del self.runs[response_id], self._tasks[response_id]

    async def _ask(self, run: Run, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer the request."""
        more = {RESPONSE_ID: run.shape.response_id, "headers": headers}
        caller = InternalCaller(run.tenant, is_admitted=True, key_id=run.key_id)
        reply = await post(self.app, "/v1/responses", run.body, caller, more, run.feed)
        if reply.status != 200:
            error = msgspec.json.decode(reply.body)["error"]
            run.fail(ApiError(error["message"], code=error["code"], status=reply.status))

    async def _renew(self) -> None:
        """Renew all leases, in one write; cancel what another worker has cancelled or deleted."""
        while self._tasks:
            await asyncio.sleep(RENEW_S)
            by_store: dict[ObjectStore, list[Run]] = {}
            for response_id in self._tasks:
                run = self.runs[response_id]
                by_store.setdefault(run.store, []).append(run)
            for store, runs in by_store.items():
                ids = [run.shape.response_id for run in runs]
                with contextlib.suppress(Unavailable):
                    for response_id in await store.renew(ids, store.now_s() + LEASE_S):
                        self.cancel(response_id)
        self._renewing = None


def _limited(what: str) -> RateLimited:
    return RateLimited(f"{what}: try again later.", headers=retry_after(RETRY_S))


async def _settle(run: Run) -> None:
    """Store how it ended, unless it was cancelled or its request has stored it."""
    response_id, store = run.shape.response_id, run.store

    def change(stored: StoredObject) -> StoredObject:
        if not stored.leased_until_s:
            return replace(stored, leased_until_s=0.0)
        response = msgspec.json.decode(run.events[-1].partition(b"\ndata: ")[2]).get("response")
        if response is None:
            run.shape.failed(ServerError("The gateway failed to complete the response."))
            response = run.shape.response
        return StoredObject(encode(response))

    await store.change("response", response_id, run.tenant, change)
    if run.keeps_events:
        kept = StoredObject(b"".join(run.events))
        await store.change("events", response_id, run.tenant, lambda _: kept)
