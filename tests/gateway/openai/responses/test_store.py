"""Stored responses: per tenant, until they expire, bounded, and complete after a crash."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import NotFound, Unavailable
from gateway.openai.responses.store import ResponseStore, StoredResponse
from policies.responses import ResponsesSection

ITEMS = [{"id": "msg_1", "type": "message"}]
STORED = StoredResponse(b'{"id":"resp_1"}', ITEMS)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[ResponseStore]:
    store = ResponseStore(str(tmp_path), ResponsesSection(ttl_s=60, max_bytes=1 << 20), clock)
    yield store
    await store.close()


async def is_stored(store: ResponseStore, response_id: str, tenant: str = "a") -> bool:
    try:
        await store.get(response_id, tenant)
    except NotFound:
        return False
    return True


async def test_what_is_put_is_there_for_its_tenant_only(store: ResponseStore) -> None:
    await store.put("resp_1", "a", STORED)
    assert await store.get("resp_1", "a") == STORED
    assert not await is_stored(store, "resp_1", "b")
    with pytest.raises(NotFound, match="resp_1"):
        await store.delete("resp_1", "b")
    await store.delete("resp_1", "a")
    assert not await is_stored(store, "resp_1")


async def test_it_expires(store: ResponseStore, clock: Clock, tmp_path: Path) -> None:
    await store.put("resp_1", "a", STORED)
    clock.now_s += 59
    assert await is_stored(store, "resp_1")
    clock.now_s += 2
    assert not await is_stored(store, "resp_1")
    with pytest.raises(NotFound):
        await store.delete("resp_1", "a")
    await store.put("resp_2", "a", STORED)  # erases what has expired
    clock.now_s -= 2
    assert not await is_stored(store, "resp_1")


async def test_the_oldest_make_room(store: ResponseStore, clock: Clock) -> None:
    big = StoredResponse(b"x" * 100_000, ITEMS)
    for number in range(300):
        clock.now_s += 0.01
        await store.put(f"resp_{number}", "a", big if number % 30 == 29 else STORED)
    assert await is_stored(store, "resp_299") and not await is_stored(store, "resp_0")


async def test_the_file_is_private_and_shared_by_workers(store: ResponseStore, tmp_path: Path) -> None:
    await store.put("resp_1", "a", STORED)
    assert stat.S_IMODE((tmp_path / "responses.sqlite").stat().st_mode) == 0o600
    other = ResponseStore(str(tmp_path), ResponsesSection(), lambda: 1000.0)
    assert await other.get("resp_1", "a") == STORED
    await other.close()


async def test_without_a_folder_it_lives_in_memory() -> None:
    store = ResponseStore("", ResponsesSection())
    await store.put("resp_1", "a", STORED)
    assert await is_stored(store, "resp_1")
    await store.close()


async def test_a_file_that_cannot_be_opened_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ResponseStore(str(tmp_path / "file" / "folder"), ResponsesSection())
    with pytest.raises(Unavailable, match="'store': false"):
        await store.put("resp_1", "a", STORED)
    await store.close()


WRITER = """
import asyncio, sys
from gateway.openai.responses.store import ResponseStore, StoredResponse
from policies.responses import ResponsesSection

async def main():
    store = ResponseStore(sys.argv[1], ResponsesSection())
    for number in range(10**6):
        await store.put(f"resp_{number}", "a", StoredResponse(b"x" * 5000, [{"id": str(number)}]))
        print(number, flush=True)

asyncio.run(main())
"""


async def test_everything_written_survives_a_kill(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        written = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()
        written += [int(line) for line in writer.stdout.read().split()]
    store = ResponseStore(str(tmp_path), ResponsesSection())
    for number in written:
        assert await store.get(f"resp_{number}", "a") == StoredResponse(b"x" * 5000, [{"id": str(number)}])
    await store.close()
