"""Changes of policy files are noticed once they have come to rest, whatever kind of change it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.processes.policy_watch import PolicyWatch, read_at_rest, stamp
from policies.errors import Place, PolicyError, Problem
from policies.load import load_folder
from tests.gateway.processes.test_managed_process import until


@asynccontextmanager
async def changes(folder: Path) -> AsyncIterator[list[int]]:
    found: list[int] = []
    watch = PolicyWatch(folder)
    task = asyncio.create_task(watch.run(watch.reading(lambda: found.append(len(found))), poll_s=0.01))
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_written_added_and_removed_files(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1")
    async with changes(tmp_path) as found:
        path.write_text("a: 22")
        await until(lambda: len(found) == 1)
        (tmp_path / "b.yml").write_text("")
        await until(lambda: len(found) == 2)
        (tmp_path / "b.yml").unlink()
        await until(lambda: len(found) == 3)


async def test_a_mounted_config_map_changes_by_its_link(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(version * 2)
    os.utime(tmp_path / "two" / "a.yaml", (1, 1))
    folder = tmp_path / "mounted"
    folder.symlink_to("one")
    async with changes(folder) as found:
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(folder)
        await until(lambda: len(found) == 1)


async def test_a_replacement_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "a.yaml", tmp_path / "next"
    for each, text in ((path, "a: 1\n"), (other, "a: 2\n")):
        each.write_text(text)
        os.utime(each, (1, 1))
    async with changes(tmp_path) as found:
        other.rename(path)
        await until(lambda: len(found) == 1)
        path.write_text("a: 3\n")
        os.utime(path, (1, 1))
        await until(lambda: len(found) == 2)


async def test_what_was_read_on_request_is_no_change(tmp_path: Path) -> None:
    """A rollback that follows stays: files are read again only once they differ from what was read."""
    (tmp_path / "a.yaml").write_text("a: 1\n")
    watch, found = PolicyWatch(tmp_path), list[str]()
    read = watch.reading(lambda: found.append((tmp_path / "a.yaml").read_text()))
    task = asyncio.create_task(watch.run(read, poll_s=0.01))
    (tmp_path / "a.yaml").write_text("a: 22\n")
    read()
    (tmp_path / "b.yaml").write_text("b: 1\n")
    await until(lambda: len(found) == 2)
    (tmp_path / "a.yaml").write_text("a: 333\n")
    await until(lambda: len(found) == 3)
    assert found == ["a: 22\n", "a: 22\n", "a: 333\n"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("0\n")
    read: list[str] = []

    def reader(num_changes: int) -> Callable[[], str]:
        def once() -> str:
            read.append(path.read_text())
            if len(read) <= num_changes:
                path.write_text(f"{len(read)}\n")
                raise PolicyError([Problem(Place(str(path)), "half")])
            return read[-1]

        return once

    assert read_at_rest(tmp_path, reader(1)) == "1\n"
    read.clear()
    with pytest.raises(PolicyError, match="changes all the time, for 0.1 s now"):
        read_at_rest(tmp_path, reader(99), max_s=0.1)


def test_other_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    before = stamp(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    assert stamp(tmp_path) == before and stamp(tmp_path / "a.yaml") == before
    assert stamp(tmp_path / "missing") == ()


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(PolicyError, match=r"a.yaml: is not a file"):
        read_at_rest(tmp_path, lambda: load_folder(tmp_path))
