"""Functions compile with and without a cache on disk, and processes share it without mixing up their code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    """As one of several processes has it."""

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
from backend.kernels.compiled import compiled


def double(values):
    return values + values


function = compiled(double)
print("ready", flush=True)
for dtype in sys.stdin.readline().split():
    values = np.arange(3, dtype=dtype)
    found = function(values)
    assert found.dtype == values.dtype and (found == 2 * values).all(), dtype
print(sum(function.dispatcher.stats.cache_hits.values()), flush=True)
"""


def test_processes_that_compile_at_once_do_not_run_each_others_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins with another signature; Numba numbers the files of signatures."""
    script = tmp_path / "doubling.py"
    script.write_text(PROCESS)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    dtypes = ["int32", "float64", "float32", "int64"]

    def start() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, text=True)

    processes = [start() for _ in range(3)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    orders = [" ".join(dtypes[i:] + dtypes[:i]) + "\n" for i in range(len(processes))]
    for process, order in zip(processes, orders, strict=True):
        assert process.stdin is not None
        process.stdin.write(order)
        process.stdin.flush()
    assert [process.wait(100) for process in processes] == [0, 0, 0]
    for process in processes:
        process.communicate()
    last = start()
    found, _ = last.communicate(orders[0], 100)
    assert last.returncode == 0 and found.split()[-1] == str(len(dtypes)), "all are in the cache"
    assert len(list((tmp_path / "cache").rglob("*.nbc"))) == len(dtypes)


def test_every_source_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    found = set()
    for name, text in (("compiled.py", "a"), ("one/kernel.py", "b"), ("one/kernel.py", "c")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(module, "__file__", str(tmp_path / "compiled.py"))
        found.add(module._sources_digest())
    assert len(found) == 3
