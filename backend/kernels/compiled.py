"""Loops for CPUs, compiled by Numba when they are first called and cached on disk for the next process."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from filelock import FileLock
from numba import njit
from numba.extending import intrinsic as numba_intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

_OPTIONS: dict[str, Any] = {"fastmath": True, "nogil": True, "error_model": "numpy"}


def _sources_digest() -> str:
    """The digest of what compiled functions may have inlined: Numba itself checks its own file alone."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_DIGEST = _sources_digest()


class CachedFunction:
    """A compiled function whose cache on disk is read and written under a file lock.

    Numba numbers the files of a function's signatures: two processes that compile different signatures at
    once would take the same number, and one would run the other's code. So every call for which nothing is
    compiled in this process yet, and only such a call, waits for the lock.
    """

    __slots__ = ("_is_ready", "dispatcher")

    def __init__(self, dispatcher: Any) -> None:  # noqa: ANN401 - Numba has no types
        self.dispatcher = dispatcher
        self._is_ready = False  # a signature is compiled, so that Numba agrees to compile no others by itself

    def __call__(self, *arguments: object) -> object:
        """Call it; compile it for arguments of new types, or load what another process compiled."""
        if self._is_ready:
            try:
                return self.dispatcher(*arguments)
            except TypeError:
                pass  # nothing is compiled for these types: nothing ran
        try:
            return self._load_or_compile(arguments)
        except (OSError, NotImplementedError) as error:  # a full disk, or one without file locks
            _log_no_cache(str(error))
            self.dispatcher = njit(**_OPTIONS)(self.dispatcher.py_func)
            self._is_ready = True
            return self.dispatcher(*arguments)

    def _load_or_compile(self, arguments: tuple[object, ...]) -> object:
        if self.dispatcher.stats.cache_path is None:
            return self.dispatcher(*arguments)
        folder = Path(self.dispatcher.stats.cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "kernels.lock"):
            if self._is_ready:
                self.dispatcher.disable_compile(False)
            result = self.dispatcher(*arguments)
            self.dispatcher.disable_compile()
            self._is_ready = True
        return result


@functools.cache
def _log_no_cache(error: str) -> None:
    """Once for each error: it comes with every function."""
    logger.warning("compiled CPU loops are not cached on disk, so they are compiled again: %s", error)


def compiled(function: _Function) -> _Function:
    """The function as machine code: sums in any order, without the interpreter's lock.

    The cache is beside the source or in the user's cache folder; where neither can be written, each process
    compiles again.
    """
    function.__qualname__ += f"_{_DIGEST}"  # a part of the name of its cache
    try:
        return cast("_Function", CachedFunction(njit(cache=True, **_OPTIONS)(function)))
    except RuntimeError:
        return cast("_Function", njit(**_OPTIONS)(function))


def inner(function: _Function) -> _Function:
    """For what only compiled functions call: it is cached as a part of them."""
    return cast("_Function", njit(**_OPTIONS)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what compiled functions call and LLVM's instructions say better; see Numba's documentation."""
    return cast("Callable[..., Any]", numba_intrinsic(function))
