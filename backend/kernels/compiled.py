"""Loops for CPUs, compiled by Numba when they are first called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import IndexDataCacheFile
from numba.extending import intrinsic as numba_intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _sources_digest() -> str:
    """Of everything that a compiled function may have taken in: Numba itself looks at its own file alone."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_DIGEST = _sources_digest()


class _CacheFile(IndexDataCacheFile):
    """What was compiled lies in a file per signature, named by it and written before the index names it.

    Numba numbers these files: two processes that compile at once for different types took the same number,
    and one ran the other's code.
    """

    def save(self, key: object, data: object) -> None:
        """See IndexDataCacheFile."""
        numba: Any = self  # its methods have no types
        digest = hashlib.sha256(repr((key, numba._source_stamp)).encode()).hexdigest()
        name = numba._data_name(int(digest[:12], 16))
        numba._save_data(name, data)
        numba._save_index(numba._load_index() | {key: name})


def compiled(function: _Function) -> _Function:
    """The function as machine code: sums in any order, without the interpreter's lock.

    What was compiled is kept beside the source or in the user's cache, for the next process; where neither
    can be written, each process compiles anew.
    """
    function.__qualname__ += f"_{_DIGEST}"  # a part of the name that it is kept under
    try:
        found: Any = njit(cache=True, fastmath=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        return cast("_Function", njit(fastmath=True, nogil=True, error_model="numpy")(function))
    cache, kind = found._cache, found._cache._impl
    make: Callable[..., object] = _CacheFile
    cache._cache_file = make(cache.cache_path, kind.filename_base, kind.locator.get_source_stamp())
    return cast("_Function", found)


def inner(function: _Function) -> _Function:
    """For what only compiled functions call: it is kept as a part of them."""
    return cast("_Function", njit(fastmath=True, nogil=True, error_model="numpy")(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what compiled functions call and LLVM's instructions say better; see Numba's documentation."""
    return cast("Callable[..., Any]", numba_intrinsic(function))
