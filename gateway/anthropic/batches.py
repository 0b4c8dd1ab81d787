"""/v1/messages/batches: Anthropic's Message Batches, over the batches of /v1/batches."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.auth import KeyRing
from gateway.batches.files import FileStore
from gateway.batches.records import Batch
from gateway.batches.store import BatchStore
from gateway.errors import InvalidRequest, NotFound
from gateway.exchange.shape import encode
from gateway.requests import refusals
from gateway.requests.pages import PageQuery
from gateway.requests.parse import decode_body, typed, typed_at
from gateway.web.http_call import HttpCall
from policies.batches import BatchesSection

ENDPOINT = "/v1/messages"
WINDOW = "24h"
MAX_LIMIT = 1000
STATUSES = {
    "validating": "in_progress",
    "in_progress": "in_progress",
    "finalizing": "in_progress",
    "cancelling": "canceling",
}
"""Every other status of a batch is `ended`."""
UNASKED = {"batch_expired": "expired", "batch_cancelled": "canceled"}
_LINES_AT_ONCE = 64


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    custom_id: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
    params: dict[str, Any]


class CreateMessageBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/messages/batches."""

    requests: Annotated[list[Any], Meta(min_length=1)]


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    body: msgspec.Raw


class _Fault(msgspec.Struct, frozen=True):
    code: str


class _Line(msgspec.Struct, frozen=True):
    """One line of a batch's output or error file."""

    custom_id: str
    response: _Response | None = None
    error: _Fault | None = None


_decode_line = msgspec.json.Decoder(_Line).decode


class MessageBatchesEndpoint:
    """What a tenant may do with its batches of messages."""

    def __init__(
        self,
        keys: KeyRing,
        store: BatchStore,
        files: FileStore,
        policy: BatchesSection,
        on_create: Callable[[], None],
        *,
        max_body_bytes: int,
    ) -> None:
        """`on_create` is called after a batch has been stored."""
        self._keys = keys
        self._store = store
        self._files = files
        self._policy = policy
        self._on_create = on_create
        self._max_body_bytes = max_body_bytes

    async def create(self, call: HttpCall) -> None:
        """A new batch. Raises ApiError."""
        tenant = self._tenant(call)
        raw = await call.read_json_bytes(self._max_body_bytes)
        content = await asyncio.to_thread(_lines, raw, self._policy.max_lines)
        ttl_s = self._policy.ttl_s
        name = "message_batch.jsonl"
        file = await self._files.add(tenant, "batch", name, io.BytesIO(content), ttl_s, self._policy)
        try:
            batch = await self._store.add(
                tenant,
                ENDPOINT,
                file.id,
                window=WINDOW,
                metadata=None,
                output_ttl_s=ttl_s,
                policy=self._policy,
                num_lines=content.count(b"\n"),
            )
        except BaseException:
            with contextlib.suppress(NotFound):
                await self._files.delete(file.id, tenant)
            raise
        self._on_create()
        await call.respond(encode(_shown(batch, call)))

    async def list(self, call: HttpCall) -> None:
        """A page, the newest first: `limit`, `after_id`, `before_id`. Raises ApiError."""
        tenant = self._tenant(call)
        after, before = call.query.get("after_id", ""), call.query.get("before_id", "")
        if after and before:
            raise refusals.wrong_value("before_id", "it cannot be combined with 'after_id'")
        query = {"limit": call.query.get("limit", "20"), "after": after or before}
        page = PageQuery.read(query | ({"order": "asc"} if before else {}), most=MAX_LIMIT)
        batches, has_more = await self._store.page(tenant, page, ENDPOINT)
        shown = [_shown(batch, call) for batch in (batches[::-1] if before else batches)]
        ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {}
        body = {"data": shown, "has_more": has_more, "first_id": None, "last_id": None, **ends}
        await call.respond(encode(body))

    async def show(self, call: HttpCall) -> None:
        """The batch as it is now. Raises NotFound."""
        await call.respond(encode(_shown(await self._batch(call), call)))

    async def cancel(self, call: HttpCall) -> None:
        """Ask no more requests; those in flight finish. Raises ApiError."""
        batch = await self._batch(call)
        batch = await self._store.cancel(batch.id, self._tenant(call))
        await call.respond(encode(_shown(batch, call)))

    async def delete(self, call: HttpCall) -> None:
        """Erase a batch that has ended, with its results. Raises ApiError."""
        batch, tenant = await self._batch(call), self._tenant(call)
        if batch.is_open:
            raise InvalidRequest(
                f"The batch {batch.id!r} has not ended: cancel it first, and delete it when it has ended.",
                code="batch_not_ended",
            )
        await self._store.delete(batch.id, tenant)
        for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
            with contextlib.suppress(NotFound):
                await self._files.delete(file_id or "", tenant)
        await call.respond(encode({"id": batch.id, "type": "message_batch_deleted"}))

    async def results(self, call: HttpCall) -> None:
        """A line of JSON for every request of a batch that has ended. Raises ApiError."""
        batch, tenant = await self._batch(call), self._tenant(call)
        if batch.is_open:
            raise InvalidRequest(
                f"The batch {batch.id!r} has no results yet: wait until its processing_status is 'ended'.",
                code="batch_not_ended",
            )
        paths = []
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                paths.append(self._files.path((await self._files.get(file_id, tenant)).id))
        lines = _results(paths)
        await call.start_body({"content-type": "application/x-jsonl"})
        while some := await asyncio.to_thread(lambda: list(islice(lines, _LINES_AT_ONCE))):
            await call.write(b"".join(some))
        await call.end_stream()

    def _tenant(self, call: HttpCall) -> str:
        return self._keys.identify(call.authorization).tenant

    async def _batch(self, call: HttpCall) -> Batch:
        """The batch of the path. Raises NotFound, also for one of another endpoint."""
        batch = await self._store.get(call.path_id, self._tenant(call))
        if batch.endpoint != ENDPOINT:
            raise NotFound("This batch is none of messages: see /v1/batches.", code="batch_not_found")
        return batch


def _lines(raw: bytes, max_lines: int) -> bytes:
    """The requests as the lines of a batch's file. Raises InvalidRequest naming the request and its field."""
    given = typed(decode_body(raw), CreateMessageBatch).requests
    if len(given) > max_lines:
        raise refusals.wrong_value("requests", f"expected at most {max_lines}, got {len(given)}")
    first_with: dict[str, int] = {}
    lines = []
    for number, value in enumerate(given):
        where = f"requests[{number}]"
        request = typed_at(value, _Request, where)
        if first_with.setdefault(request.custom_id, number) != number:
            first = first_with[request.custom_id]
            raise refusals.wrong_value(f"{where}.custom_id", f"requests[{first}] has the same one")
        if not isinstance(request.params.get("model"), str):
            raise refusals.missing(f"{where}.params.model")
        if request.params.get("stream"):
            place = f"{where}.params.stream"
            raise refusals.unsupported(place, f"'{place}' is not supported: batches are not streamed")
        body = {name: each for name, each in request.params.items() if name != "stream"}
        line = {"custom_id": request.custom_id, "method": "POST", "url": ENDPOINT, "body": body}
        try:
            lines.append(msgspec.json.encode(line))
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"'{where}.params' holds a text that is not Unicode: a lone surrogate.", param=where
            ) from None
    return b"\n".join([*lines, b""])


def _shown(batch: Batch, call: HttpCall) -> dict[str, Any]:
    """A batch in Anthropic's shape; requests are counted when it has ended, as there."""
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    status = STATUSES.get(batch.status, "ended")
    total, done = batch.request_counts.total, batch.request_counts
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    if status == "ended":
        left = total - done.completed - done.failed
        rest = {"expired": "expired", "cancelled": "canceled"}.get(batch.status, "errored")
        counts |= {"succeeded": done.completed, "errored": done.failed}
        counts[rest] += left
    else:
        counts["processing"] = total
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": counts,
        "created_at": _time(batch.created_at),
        "expires_at": _time(batch.expires_at),
        "ended_at": _time(ended_at) if status == "ended" else None,
        "cancel_initiated_at": _time(batch.cancelling_at),
        "archived_at": None,
        "results_url": _results_url(batch, call) if status == "ended" else None,
    }


def _results_url(batch: Batch, call: HttpCall) -> str:
    """The URL for the client: its `Host`, and the scheme that a proxy in front tells."""
    told = call.read_header("x-forwarded-proto")
    scheme = told if told in ("http", "https") else call.scope.get("scheme", "http")
    return f"{scheme}://{call.read_header('host')}{ENDPOINT}/batches/{batch.id}/results"


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def _results(paths: list[Path]) -> Iterator[bytes]:
    """The lines of the answers and errors of a batch, as results."""
    for path in paths:
        with path.open("rb") as file:
            for raw in file:
                line = _decode_line(raw)
                result: dict[str, Any]
                if line.response is None:
                    result = {"type": UNASKED.get("" if line.error is None else line.error.code, "canceled")}
                elif line.response.status_code == 200:
                    result = {"type": "succeeded", "message": line.response.body}
                else:
                    result = {"type": "errored", "error": line.response.body}
                yield msgspec.json.encode({"custom_id": line.custom_id, "result": result}) + b"\n"
