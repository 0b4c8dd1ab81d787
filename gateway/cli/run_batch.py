"""`penstock batch FILE -o OUT`: a server of its own answers a file of requests through /v1/batches, and ends.

What is answered is kept in the folder OUT.state until OUT is complete: the same command goes on after an
interruption.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any, TextIO

import httpx2
import msgspec

from gateway.batches.records import BATCH_ENDPOINTS
from gateway.cli.run_gateway import listen
from gateway.log import configure_logging
from gateway.processes.reload import Load
from gateway.processes.supervisor import Supervisor
from gateway.settings import Settings, SettingsError
from policies.batches import BatchesSection
from policies.document import Policies

POLL_S = 0.5
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
EXIT_FAILED_LINES = 1
EXIT_INTERRUPTED = 130
_NO_LIMIT = 1 << 50
_PIECE_BYTES = 1 << 20


def run_batch(
    settings: Settings, policies: Policies, load: Load, source: Path, target: Path, report: TextIO
) -> int:
    """Answer the requests in `source`, writing answers, then errors, to `target`; progress goes to `report`.

    Returns the exit code: 0, or 1 if some lines failed. Raises SettingsError for a file that cannot be used.
    """
    endpoint = endpoint_of(source)
    _check_target(source, target)
    state = target.with_name(target.name + ".state")
    configure_logging(settings.log_format)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = msgspec.structs.replace(
        settings, workers=1, api_keys=(), keys_file="", data_dir=str(state.absolute())
    )
    policies = msgspec.structs.replace(policies, batches=_unlimited(policies.batches))

    async def run() -> int:
        ready = asyncio.Event()
        supervisor = Supervisor(settings, policies, listener, ready.set, load)
        serving = asyncio.create_task(supervisor.run())
        job = asyncio.create_task(Job(url, source, endpoint, report).run(ready, target))
        await asyncio.wait({serving, job}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            job.cancel()
            report.write(f"\ninterrupted: the same command goes on; {state} has what is answered\n")
            return serving.result() or EXIT_INTERRUPTED
        supervisor.stop()
        await serving
        exit_code = job.result()
        shutil.rmtree(state, ignore_errors=True)
        return exit_code

    return asyncio.run(run())


def _check_target(source: Path, target: Path) -> None:
    if target.is_dir():
        raise SettingsError(f"--output {str(target)!r} is a folder; name a file in it")
    if target.exists() and target.samefile(source):
        raise SettingsError(f"--output {str(target)!r} is the file of requests; name another one")


def endpoint_of(source: Path) -> str:
    """The `url` of the first request. Raises SettingsError without one."""
    try:
        with source.open("rb") as file:
            first = next((line for line in file if line.strip()), b"{}")
        found = json.loads(first).get("url")
    except OSError as error:
        raise SettingsError(f"{source} cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, RecursionError):
        found = None
    if found not in BATCH_ENDPOINTS:
        raise SettingsError(
            f"the first line of {source} has no url to send it to: write one request per line, as "
            '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {…}}; '
            f"urls are {', '.join(BATCH_ENDPOINTS)}"
        )
    return str(found)


class Job:
    """One batch of the server at `url`."""

    def __init__(self, url: str, source: Path, endpoint: str, report: TextIO) -> None:
        self._source = source
        self._endpoint = endpoint
        self._report = report
        self._http = httpx2.AsyncClient(base_url=url, trust_env=False, timeout=httpx2.Timeout(None))
        self._began: tuple[float, int] | None = None  # time, and lines that had an answer then

    async def run(self, ready: asyncio.Event, target: Path) -> int:
        """Wait for the server, then for the batch, and write its files. Returns the exit code."""
        await ready.wait()
        async with self._http:
            batch = await self._unfinished() or await self._create()
            while batch["status"] in OPEN:
                self._show(batch)
                await asyncio.sleep(POLL_S)
                batch = await self._json("GET", f"/v1/batches/{batch['id']}")
            if batch["status"] == "failed":
                self._show_faults(batch)
                return EXIT_FAILED_LINES
            self._show(batch, is_last=True)
            await self._write(batch, target)
        return EXIT_FAILED_LINES if batch["error_file_id"] else 0

    async def _unfinished(self) -> dict[str, Any] | None:
        """The batch of an earlier run. Raises SettingsError if it had another input."""
        for batch in (await self._json("GET", "/v1/batches"))["data"]:
            digest = hashlib.sha256()
            async for piece in self._content(batch["input_file_id"]):
                digest.update(piece)
            with self._source.open("rb") as file:
                same = digest.digest() == hashlib.file_digest(file, "sha256").digest()
            if not same:
                raise SettingsError("OUT.state is of another FILE: delete it to begin again")
            return dict(batch)
        return None

    async def _create(self) -> dict[str, Any]:
        with self._source.open("rb") as content:
            file = await self._json(
                "POST", "/v1/files", data={"purpose": "batch"}, files={"file": (self._source.name, content)}
            )
        fields = {"input_file_id": file["id"], "endpoint": self._endpoint, "completion_window": "24h"}
        return await self._json("POST", "/v1/batches", json=fields)

    async def _write(self, batch: dict[str, Any], target: Path) -> None:
        part = target.with_name(target.name + ".part")
        with part.open("wb") as file:
            for file_id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
                async for piece in self._content(file_id):
                    file.write(piece)
        part.replace(target)

    async def _content(self, file_id: str) -> Any:  # noqa: ANN401 - an async generator
        async with self._http.stream("GET", f"/v1/files/{file_id}/content") as response:
            response.raise_for_status()
            async for piece in response.aiter_bytes(_PIECE_BYTES):
                yield piece

    async def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        response = await self._http.request(method, path, **options)
        answer: dict[str, Any] = response.json()
        if response.status_code != 200:
            raise SettingsError(answer["error"]["message"])
        return answer

    def _show(self, batch: dict[str, Any], *, is_last: bool = False) -> None:
        """A line that replaces the one before; where nothing can be replaced, only the last."""
        counts = batch["request_counts"]
        num_done = counts["completed"] + counts["failed"]
        began_s, num_before = self._began = self._began or (time.monotonic(), num_done)
        rate = (num_done - num_before) / max(time.monotonic() - began_s, POLL_S)
        text = f"{num_done} of {counts['total']} lines, {counts['failed']} failed, {rate:.1f} lines/s"
        if rate and not is_last:
            text += f", about {(counts['total'] - num_done) / rate:.0f} s left"
        with contextlib.suppress(OSError):
            if self._report.isatty():
                self._report.write(f"\r\x1b[K{text}")
            elif is_last:
                self._report.write(text)
            if is_last:
                self._report.write(f", {batch['status']}\n")
            self._report.flush()

    def _show_faults(self, batch: dict[str, Any]) -> None:
        for fault in batch["errors"]["data"]:
            place = f"{self._source}:{fault['line']}" if fault["line"] else str(self._source)
            self._report.write(f"{place}: {fault['message']}\n")


def _unlimited(section: BatchesSection) -> BatchesSection:
    """The limits of the policies are for tenants of a server."""
    return msgspec.structs.replace(
        section, max_lines=_NO_LIMIT, max_file_bytes=_NO_LIMIT, max_tenant_bytes=_NO_LIMIT
    )
