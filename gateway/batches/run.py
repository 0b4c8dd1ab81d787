"""One batch from its input file to its output files; a process that is killed loses only lines in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from time import monotonic, time

from starlette.types import ASGIApp

from gateway.auth import InternalCaller
from gateway.batches.files import FileStore, PartFile
from gateway.batches.in_process import Reply, post
from gateway.batches.lines import (
    BatchLine,
    answer_line,
    check_lines,
    read_lines,
    unasked_line,
    usage_of,
)
from gateway.batches.records import Batch, EndStatus, Fault, StoredBatch
from gateway.batches.store import BatchStore
from policies.batches import BatchesSection

BACKGROUND_PRIORITY = 1
"""Priority of a batch's sequences in an engine; those of other requests have 0."""
RETRIED_STATUSES = (429, 502, 503, 504)
MAX_TRIES = 6
RETRY_S = 1.0
"""Before the second try; doubled before each further one."""
MAX_WAIT_S = 60.0
"""For a limit: a line that is told when to come back is asked again after this time, however often."""
LOOK_S = 5.0
"""How soon a line that waits sees that its batch was cancelled."""
_READ_AHEAD = 32
"""Lines that are read from the input file at once."""
_UNASKED: dict[EndStatus, tuple[str, str]] = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed before the batch was cancelled."),
}


class BatchRun:
    """Runs one batch that no other process runs."""

    def __init__(
        self,
        stored: StoredBatch,
        store: BatchStore,
        files: FileStore,
        app: ASGIApp,
        slots: asyncio.Semaphore,
        policy: BatchesSection,
        *,
        max_line_bytes: int,
    ) -> None:
        """`slots` bounds the lines that are asked at the same time, of all batches."""
        self._stored = stored
        self._store = store
        self._path = files.path(stored.batch.input_file_id)
        self._files = files
        self._app = app
        self._slots = slots
        self._policy = policy
        self._max_line_bytes = max_line_bytes
        self._caller = InternalCaller(stored.tenant, BACKGROUND_PRIORITY, "batch")

    async def run(self) -> None:
        """Do what remains. Raises Unavailable or OSError when it cannot go on now."""
        number = self._stored.number
        if self._batch.status == "validating":
            await self._validate()
        if self._batch.status == "in_progress":
            await self._ask_lines()
        if self._batch.status == "in_progress" and not self._is_expired:
            self._stored = await self._store.finalize(number)
        if self._batch.status == "cancelling":
            await self._end("cancelled")
        elif self._batch.status == "finalizing":
            await self._end("completed")
        elif self._batch.status == "in_progress":
            await self._end("expired")

    @property
    def _batch(self) -> Batch:
        return self._stored.batch

    @property
    def _is_expired(self) -> bool:
        return time() >= self._batch.expires_at

    @property
    def _goes_on(self) -> bool:
        return self._batch.status == "in_progress" and not self._is_expired

    async def _validate(self) -> None:
        try:
            num_lines, faults = await asyncio.to_thread(
                check_lines,
                self._path,
                self._batch.endpoint,
                max_lines=self._policy.max_lines,
                max_line_bytes=self._max_line_bytes,
            )
        except FileNotFoundError:
            num_lines, faults = 0, [Fault("file_not_found", "The input file was deleted.")]
        number = self._stored.number
        if faults:
            self._stored = await self._store.fail(number, faults)
        else:
            self._stored = await self._store.begin(number, num_lines)

    async def _ask_lines(self) -> None:
        """Ask every line that has no answer, until the batch is cancelled or expires."""
        answered = await self._store.answered(self._stored.number)
        held = asyncio.Semaphore(self._policy.max_concurrency)  # in memory: lines that wait have no slot
        async with asyncio.TaskGroup() as tasks:
            async for lines in _lines(self._path):
                for line in lines:
                    if line.number in answered:
                        continue
                    await held.acquire()
                    if not self._goes_on:
                        return
                    task = tasks.create_task(self._answer(line))
                    task.add_done_callback(lambda _: held.release())

    async def _answer(self, line: BatchLine) -> None:
        reply = await self._ask(line)
        if reply is None:
            return
        is_error = reply.status >= 400
        answer = answer_line(line.custom_id, reply.status, reply.headers.get("x-request-id", ""), reply.body)
        usage = usage_of(b"{}" if is_error else reply.body)
        self._stored = await self._store.record(
            self._stored.number, line.number, answer, usage, is_error=is_error
        )

    async def _ask(self, line: BatchLine) -> Reply | None:
        """The answer; None when the batch is cancelled or expires before the line was asked, or is let in."""
        tries = 0
        while True:
            async with self._slots:
                if not self._goes_on:
                    return None
                reply = await post(self._app, self._batch.endpoint, line.body, self._caller)
            if reply.status not in RETRIED_STATUSES:
                return reply
            told_s = reply.headers.get("retry-after", "") if reply.status == 429 else ""
            if told_s.isdecimal():  # a limit, as of requests per minute: no try is counted
                await self._wait(min(max(RETRY_S, float(told_s)), MAX_WAIT_S))
                continue
            tries += 1
            if tries == MAX_TRIES:
                return reply
            await self._wait(RETRY_S * 2 ** (tries - 1))

    async def _wait(self, seconds: float) -> None:
        """Until then, or until the batch is cancelled or expires."""
        end_s = monotonic() + seconds
        while self._goes_on and (left_s := end_s - monotonic()) > 0:
            await asyncio.sleep(min(left_s, LOOK_S))
            self._stored = await self._store.at(self._stored.number)

    async def _end(self, status: EndStatus) -> None:
        """Write the files, then register them and end the batch in one transaction."""
        batch, number = self._batch, self._stored.number
        sizes: dict[str, int] = {}
        if batch.request_counts.total:  # 0: cancelled before its lines were counted
            unasked = None if status == "completed" else self._unasked(status)
            for file_id, more in ((batch.output_id, None), (batch.error_id, unasked)):
                answered = self._answered(is_error=file_id == batch.error_id)
                sizes[file_id] = await _write(self._files.path(file_id), answered, more)
        sizes = {file_id: num_bytes for file_id, num_bytes in sizes.items() if num_bytes}
        self._stored = await self._store.end(number, status, sizes)

    async def _answered(self, *, is_error: bool) -> AsyncIterator[list[bytes]]:
        after = 0
        while lines := await self._store.lines(self._stored.number, after, is_error=is_error):
            after = lines[-1][0]
            yield [line for _, line in lines]

    async def _unasked(self, status: EndStatus) -> AsyncIterator[list[bytes]]:
        code, message = _UNASKED[status]
        answered = await self._store.answered(self._stored.number)
        async for lines in _lines(self._path):
            yield [
                unasked_line(line.custom_id, code, message) for line in lines if line.number not in answered
            ]


async def _lines(path: Path) -> AsyncIterator[list[BatchLine]]:
    lines = read_lines(path)
    while some := await asyncio.to_thread(lambda: list(islice(lines, _READ_AHEAD))):
        yield some


async def _write(path: Path, *groups: AsyncIterator[list[bytes]] | None) -> int:
    """Write a file of these lines; returns its size, and 0 without leaving one. Raises OSError."""
    part = PartFile(path)  # not in a thread: what is cancelled meanwhile would leave it open
    try:
        for group in filter(None, groups):
            async for lines in group:
                await asyncio.to_thread(part.write, lines)
        num_bytes = await asyncio.to_thread(part.finish)
    finally:
        part.discard()
    if not num_bytes:
        path.unlink(missing_ok=True)
    return num_bytes
