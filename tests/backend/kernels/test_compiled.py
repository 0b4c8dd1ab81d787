"""Functions compile whether or not there is a place to keep what was compiled."""

from __future__ import annotations

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

    def njit(**options: bool) -> Callable[..., Any]:
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return original(**options)

    original = module.njit
    monkeypatch.setattr(module, "njit", njit)
    assert module.compiled(total)(np.arange(5.0)) == 10.0
    assert [bool(options.get("cache")) for options in asked] == [True, False]


def test_what_was_compiled_is_known_by_all_kernels_sources() -> None:
    """Numba compiles anew when a function's own file changes, not when what it calls does."""

    def answer() -> int:
        return 42

    function: Any = module.compiled(answer)
    assert function() == 42
    assert module._sources_digest() in function.__qualname__
    assert module._sources_digest() in Path(function._cache._cache_file._index_path).name


def doubling() -> Any:  # noqa: ANN401
    """As one of several processes has it."""

    def double(values: np.ndarray) -> np.ndarray:
        return values + values

    return module.compiled(double)


def test_processes_that_compile_at_once_keep_apart_what_they_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither has seen what the other is about to keep."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    values = [np.arange(3, dtype=dtype) for dtype in (np.int32, np.float64)]
    with monkeypatch.context() as unseen:
        unseen.setattr(module._CacheFile, "_load_index", lambda _: {})
        for own in values:
            doubling()(own)
    assert len(list(tmp_path.rglob("*.nbc"))) == 2
    last = doubling()
    for own in values:
        np.testing.assert_array_equal(last(own), 2 * own)
    assert sum(last.stats.cache_hits.values()) == 1, "the index knows one, the other is compiled anew"
    again = doubling()
    for own in values:
        again(own)
    assert sum(again.stats.cache_hits.values()) == 2 and len(list(tmp_path.rglob("*.nbc"))) == 2


def test_every_source_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    found = set()
    for name, text in (("compiled.py", "a"), ("one/kernel.py", "b"), ("one/kernel.py", "c")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(module, "__file__", str(tmp_path / "compiled.py"))
        found.add(module._sources_digest())
    assert len(found) == 3
