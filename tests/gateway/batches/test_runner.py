"""Batches run by one worker after another, on a scripted application."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gateway.batches import run, store
from gateway.batches.files import FileStore
from gateway.batches.records import Batch
from gateway.batches.service import BatchService
from gateway.requests.pages import PageQuery
from gateway.web.http_call import INTERNAL_CALLER
from policies.batches import BatchesSection

CHAT = "/v1/chat/completions"
POLICY = BatchesSection()
Answer = Callable[[str], Awaitable[int]]


class App:
    """Answers with the status that `answer` gives for the request's model."""

    def __init__(self, answer: Answer, headers: dict[str, str] | None = None) -> None:
        self.answer = answer
        self.headers = headers
        self.asked: Counter[str] = Counter()
        self.num_open = self.most_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"] == CHAT and scope[INTERNAL_CALLER].tenant in ("a", "b")
        model = json.loads((await receive())["body"])["model"]
        self.asked[model] += 1
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            status = await self.answer(model)
        finally:
            self.num_open -= 1
        body = {"model": model, "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
        await JSONResponse(body, status, self.headers)(scope, receive, send)


async def says_200(model: str) -> int:
    return 200


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[BatchService]:
    service = BatchService(str(tmp_path), 1000)
    yield service
    await service.runner.close()
    await service.close()


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RETRY_S", 0.001)


async def add(service: BatchService, models: list[str], tenant: str = "a") -> Batch:
    lines = [
        {"custom_id": f"id {number}", "method": "POST", "url": CHAT, "body": {"model": model}}
        for number, model in enumerate(models)
    ]
    content = io.BytesIO("\n".join(map(json.dumps, lines)).encode())
    file = await service.files.add(tenant, "batch", "in.jsonl", content, 3600, POLICY)
    return await service.batches.add(
        tenant, CHAT, file.id, window="24h", metadata=None, output_ttl_s=7200, policy=POLICY
    )


async def start(service: BatchService, app: App, max_concurrency: int = 8) -> None:
    service.runner.app = app
    service.runner.use(BatchesSection(max_concurrency=max_concurrency))
    await service.runner.start()


async def ended(service: BatchService, batch: Batch, tenant: str = "a") -> Batch:
    while batch.is_open:
        await asyncio.sleep(0.001)
        batch = await service.batches.get(batch.id, tenant)
    return batch


def lines_of(files: FileStore, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in files.path(file_id).read_text().splitlines()]


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines]


async def test_answers_and_errors_are_in_two_files_in_order(service: BatchService) -> None:
    async def answer(model: str) -> int:
        while app.most_open < 3:
            await asyncio.sleep(0)
        return 400 if model == "bad" else 200

    app = App(answer)
    await start(service, app, max_concurrency=3)
    batch = await ended(service, await add(service, ["m0", "bad", *(f"m{n}" for n in range(2, 30))]))
    assert batch.status == "completed" and batch.completed_at and app.most_open == 3
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (30, 29, 1)
    assert (batch.usage.input_tokens, batch.usage.total_tokens) == (58, 87)
    answers, errors = (lines_of(service.files, each) for each in (batch.output_file_id, batch.error_file_id))
    assert ids(answers) == [f"id {n}" for n in range(30) if n != 1] and ids(errors) == ["id 1"]
    assert answers[0]["response"]["status_code"] == 200 and errors[0]["response"]["status_code"] == 400
    assert batch.output_file_id is not None
    file = await service.files.get(batch.output_file_id, "a")
    assert file.purpose == "batch_output" and file.expires_at == file.created_at + 7200


async def test_a_busy_model_is_asked_again(service: BatchService) -> None:
    statuses = iter([429, 503, 502, 200])

    async def answer(model: str) -> int:
        return next(statuses) if model == "busy" else 503

    app = App(answer)
    await start(service, app)
    batch = await ended(service, await add(service, ["busy", "away"]))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    assert app.asked == {"busy": 4, "away": run.MAX_TRIES}


async def test_a_line_that_a_limit_keeps_out_waits_and_holds_no_slot(
    service: BatchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    wait = run.BatchRun._wait

    async def noted(self: run.BatchRun, seconds: float) -> None:
        waited.append(seconds)
        await wait(self, seconds)

    monkeypatch.setattr(run.BatchRun, "_wait", noted)
    num_refused = 3 * run.MAX_TRIES
    is_open = asyncio.Event()

    async def answer(model: str) -> int:
        if model == "other":
            is_open.set()
        return (
            429 if model == "limited" and (app.asked[model] <= num_refused or not is_open.is_set()) else 200
        )

    app = App(answer, {"retry-after": "0"})
    await start(service, app, max_concurrency=1)
    first, second = await add(service, ["limited"]), await add(service, ["other"], "b")
    assert (await ended(service, second, "b")).status == "completed"
    assert (await ended(service, first)).request_counts.completed == 1
    assert app.asked["limited"] > num_refused and set(waited) == {run.RETRY_S}  # "0" is no reason to hurry


async def test_a_batch_that_a_limit_keeps_out_is_cancelled(
    service: BatchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LOOK_S", 0.001)
    asked = asyncio.Event()

    async def answer(model: str) -> int:
        asked.set()
        return 429

    await start(service, App(answer, {"retry-after": "50000"}), max_concurrency=2)
    batch = await add(service, ["m0", "m1", "m2"])
    await asked.wait()
    await service.batches.cancel(batch.id, "a")
    async with asyncio.timeout(5):
        batch = await ended(service, batch)
    codes = [line["error"]["code"] for line in lines_of(service.files, batch.error_file_id)]
    assert (batch.status, codes) == ("cancelled", ["batch_cancelled"] * 3)


async def test_the_next_worker_goes_on_without_repeating_answered_lines(
    service: BatchService, tmp_path: Path
) -> None:
    held = asyncio.Event()

    async def answer(model: str) -> int:
        if model >= "m5":
            await held.wait()
        return 200

    first, second = App(answer), App(says_200)
    await start(service, first, max_concurrency=2)
    batch = await add(service, [f"m{n}" for n in range(10)])
    while (await service.batches.get(batch.id, "a")).request_counts.completed < 5:
        await asyncio.sleep(0.001)
    await service.runner.close()
    other = BatchService(str(tmp_path), 1000)
    await start(other, second)
    batch = await ended(other, batch)
    assert batch.status == "completed" and set(second.asked) == {f"m{n}" for n in range(5, 10)}
    assert ids(lines_of(other.files, batch.output_file_id)) == [f"id {n}" for n in range(10)]
    await other.runner.close()
    await other.close()


async def test_a_cancelled_batch_asks_no_more(service: BatchService) -> None:
    held = asyncio.Event()
    reached = asyncio.Event()

    async def answer(model: str) -> int:
        if model == "m2":
            reached.set()
            await held.wait()
        return 200

    app = App(answer)
    await start(service, app, max_concurrency=1)
    batch = await add(service, [f"m{n}" for n in range(6)])
    await reached.wait()
    cancelling = await service.batches.cancel(batch.id, "a")
    assert cancelling.status == "cancelling" and cancelling.cancelling_at
    held.set()
    batch = await ended(service, batch)
    assert batch.status == "cancelled" and set(app.asked) == {"m0", "m1", "m2"}
    assert ids(lines_of(service.files, batch.output_file_id)) == ["id 0", "id 1", "id 2"]
    errors = lines_of(service.files, batch.error_file_id)
    assert ids(errors) == ["id 3", "id 4", "id 5"]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}


async def test_an_expired_batch_says_what_was_not_asked(
    service: BatchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(model: str) -> int:
        if model == "m1":
            monkeypatch.setattr(run, "time", lambda: time.time() + 86400)
        return 200

    await start(service, App(answer), max_concurrency=1)
    batch = await ended(service, await add(service, ["m0", "m1", "m2", "m3"]))
    assert batch.status == "expired" and batch.expired_at
    errors = lines_of(service.files, batch.error_file_id)
    assert ids(errors) == ["id 2", "id 3"] and errors[0]["error"]["code"] == "batch_expired"


async def test_a_wrong_file_fails_with_its_lines(service: BatchService) -> None:
    app = App(says_200)
    await start(service, app)
    content = io.BytesIO(b"{}\n\nnothing\n")
    file = await service.files.add("a", "batch", "in.jsonl", content, 3600, POLICY)
    batch = await service.batches.add(
        "a", CHAT, file.id, window="24h", metadata=None, output_ttl_s=3600, policy=POLICY
    )
    batch = await ended(service, batch)
    assert batch.status == "failed" and batch.errors is not None and not app.asked
    assert [(fault.line, fault.code) for fault in batch.errors.data] == [
        (1, "invalid_line"),
        (3, "invalid_json_line"),
    ]


async def test_a_tenants_batches_queue(service: BatchService) -> None:
    app = App(says_200)
    await start(service, app)
    batches = [await add(service, [f"{n}"] * 2) for n in range(3)]
    for batch in batches:
        assert (await ended(service, batch)).request_counts.completed == 2


async def test_what_a_batch_leaves_is_erased_in_small_pieces(
    service: BatchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ERASED_AT_ONCE", "LINES_AT_ONCE"):
        monkeypatch.setattr(store, name, 2)
    monkeypatch.setattr(store, "MAX_ENDED", 3)
    await start(service, App(says_200))
    batches = [await ended(service, await add(service, ["m0", "m1", "m2"])) for _ in range(4)]
    assert len(lines_of(service.files, batches[-1].output_file_id)) == 3
    await ended(service, await add(service, ["m0"]))
    found, _ = await service.batches.page("a", PageQuery(100, is_ascending=True, after=""))
    assert [batch.id for batch in found][:-1] == [batch.id for batch in batches[-2:]]
    count = "SELECT count(*) FROM batch_lines"
    async with asyncio.timeout(5):
        while await service.batches._database.read(lambda c: c.execute(count).fetchone()[0]):
            await asyncio.sleep(0.001)


async def test_answers_that_a_killed_worker_has_left_are_erased(service: BatchService) -> None:
    await start(service, App(says_200))
    await ended(service, await add(service, ["m0"]))
    database = service.batches._database
    await database.write(lambda c: c.execute("INSERT INTO batch_lines VALUES (1, 9, 0, x'00')").rowcount)
    await service.batches.erase_old(3600)
    assert await database.read(lambda c: c.execute("SELECT count(*) FROM batch_lines").fetchone()[0]) == 0
