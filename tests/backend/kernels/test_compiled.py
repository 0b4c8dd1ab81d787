"""Functions compile with and without a cache on disk, and processes share it without mixing up their code."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401 - brings the threads
from numba import types
from numba.np.numpy_support import carray

from backend.kernels import compiled as module


def total(values: np.ndarray) -> float:
    found = 0.0
    for value in values:
        found += value
    return found


def test_without_a_place_for_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def njit(**options: Any) -> Callable[..., Any]:  # noqa: ANN401
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return original(**options)

    original = module.njit
    monkeypatch.setattr(module, "njit", njit)
    assert module.compiled(total)(np.arange(5.0)) == 10.0
    assert [bool(options.get("cache")) for options in asked] == [True, False]


def test_a_change_of_any_kernel_is_a_change_of_each() -> None:
    """Numba compiles again when a function's own file changes, not when what it calls does."""

    def answer() -> int:
        return 42

    function: Any = module.compiled(answer)
    assert function() == 42
    assert module._sources_digest() in function.dispatcher.py_func.__qualname__
    assert list(Path(function.dispatcher.stats.cache_path).glob(f"*{module._sources_digest()}*.nbi"))


def doubling() -> Any:  # noqa: ANN401
    """The function as one of several processes has it."""

    def double(values: np.ndarray) -> np.ndarray:
        return values + values

    return module.compiled(double)


def test_each_signature_is_compiled_once_and_loaded_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    values = [np.arange(3, dtype=dtype) for dtype in (np.int32, np.float64, np.float32)]
    first, next_ = doubling(), doubling()
    for function in (first, first, next_):
        for own in values:
            found = function(own)
            assert found.dtype == own.dtype
            np.testing.assert_array_equal(found, 2 * own)
    assert sum(first.dispatcher.stats.cache_misses.values()) == 3
    assert sum(next_.dispatcher.stats.cache_hits.values()) == 3 and not next_.dispatcher.stats.cache_misses


@pytest.fixture
def uncached_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    module._log_no_cache.cache_clear()
    return caplog


def test_a_disk_that_is_full_when_the_cache_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncached_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    functions = [doubling(), doubling()]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # every write to a file fails
    try:
        for function in functions:
            for dtype in (np.int32, np.float64, np.int32):
                np.testing.assert_array_equal(function(np.arange(3, dtype=dtype)), [0, 2, 4])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.rglob("*.nbc"))
    assert [record.message for record in uncached_log.records if "File too large" in record.message]
    assert len(uncached_log.records) == 1


def test_a_cache_folder_that_is_gone_and_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncached_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "cache"))
    function = doubling()
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("in the way")
    np.testing.assert_array_equal(function(np.arange(3)), [0, 2, 4])
    assert "not cached on disk" in uncached_log.text


def test_the_cache_is_read_and_written_under_a_lock_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    held: list[tuple[int, int]] = []  # cached signatures when the lock was taken, and when it was released

    class Lock(module.FileLock):
        def __enter__(self) -> Lock:
            self.before = num_cached()
            super().__enter__()
            return self

        def __exit__(self, *error: Any) -> None:  # noqa: ANN401
            held.append((self.before, num_cached()))
            super().__exit__(*error)

    def num_cached() -> int:
        return len(list(tmp_path.rglob("*.nbc")))

    monkeypatch.setattr(module, "FileLock", Lock)
    function = doubling()
    for dtype in (np.int32, np.int32, np.float64, np.int32, np.float64):
        function(np.arange(3, dtype=dtype))
    assert held == [(0, 1), (1, 2)]
    doubling()(np.arange(3, dtype=np.float64))
    assert held == [(0, 1), (1, 2), (2, 2)]


PROCESS = """
import sys
import numpy as np
from numba.core.caching import IndexDataCacheFile
from backend.kernels import compiled as module


class Lock(module.FileLock):
    def __enter__(self):
        print("locks", flush=True)
        return super().__enter__()


def save_index(self, signatures):
    print("saves", flush=True)
    sys.stdin.readline()
    original(self, signatures)


def double(values):
    return values + values


module.FileLock = Lock
original, IndexDataCacheFile._save_index = IndexDataCacheFile._save_index, save_index
function = module.compiled(double)
for dtype in sys.argv[1:]:
    values = np.arange(3, dtype=dtype)
    found = function(values)
    assert found.dtype == values.dtype and (found == 2 * values).all(), dtype
print(sum(function.dispatcher.stats.cache_hits.values()), "hits", flush=True)
"""


def test_processes_that_compile_at_once_do_not_lose_or_run_each_others_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins when the first has read the index, by which Numba numbers the files of signatures."""
    script = tmp_path / "doubling.py"
    script.write_text(PROCESS)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))

    def start(*dtypes: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, str(script), *dtypes], stdin=pipe, stdout=pipe, text=True)

    first = start("int32")
    assert first.stdout is not None and "saves\n" in first.stdout
    second = start("float64")
    assert second.stdout is not None
    second.stdout.readline()  # it waits for the lock, or without one has read the same index
    for process in (first, second):
        assert process.communicate("\n", 100)[0].endswith("0 hits\n") and process.returncode == 0
    both = start("int32", "float64")
    assert both.communicate("\n\n", 100)[0].endswith("2 hits\n") and both.returncode == 0
    assert len(list((tmp_path / "cache").rglob("*.nbc"))) == 2


def test_every_source_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    found = set()
    for name, text in (("compiled.py", "a"), ("one/loop.py", "b"), ("one/loop.py", "c")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(module, "__file__", str(tmp_path / "compiled.py"))
        found.add(module._sources_digest())
    assert len(found) == 3


to_pointer = module.pointer_to(types.int64)


def counting() -> module.ThreadedFunction:
    """A job (counter, address of the parts' counts, parts) that counts how often each part is taken."""

    @module.inner
    def add_one(counts: np.ndarray, part: int) -> None:
        counts[part] += 1

    def count(job: Any) -> None:  # noqa: ANN401
        counts, part = carray(to_pointer(job[1]), job[2]), module.next_part(job)
        while part < job[2]:
            add_one(counts, part)
            part = module.next_part(job)

    return module.threaded(count)


@pytest.mark.parametrize("has_team", [True, False])
def test_threads_take_each_part_once(monkeypatch: pytest.MonkeyPatch, *, has_team: bool) -> None:
    assert module._team_starter() is not None  # torch on Linux brings GOMP
    if not has_team:
        monkeypatch.setattr(module, "_team_starter", lambda: None)
    function = counting()
    for num_parts, num_threads in ((0, 2), (1, 1), (1, 8), (1000, 2), (1000, 5)):
        counts = np.zeros(num_parts, np.int64)
        function((0, counts.ctypes.data, num_parts), num_threads)
        assert (counts == 1).all()


def test_threads_without_locks_for_the_cache(
    monkeypatch: pytest.MonkeyPatch, uncached_log: pytest.LogCaptureFixture
) -> None:
    def no_lock(path: Path) -> None:
        raise NotImplementedError("this disk has no locks")

    monkeypatch.setattr(module, "FileLock", no_lock)
    counts = np.zeros(3, np.int64)
    counting()((0, counts.ctypes.data, 3), 2)
    assert counts.tolist() == [1, 1, 1] and "this disk has no locks" in uncached_log.text
